"""What is ours beyond the papers and their baselines; the core never imports it.

Its commands, methods and parts of engines are found by name in `TABLE`, and loaded when used.
"""

TABLE: dict[str, dict[str, str]] = {
    "moved": {
        "skipbench.decode.stop_by_price.ByPrice": "skipbench.contrib.lowbit.stop_by_price.ByPrice",
        "skipbench.decode.tapout.TapOut": "skipbench.contrib.methods.tapout.TapOut",
        "skipbench.methods.asd.ASD": "skipbench.contrib.methods.asd.ASD",
        "skipbench.methods.auto.Auto": "skipbench.contrib.auto.auto.Auto",
        "skipbench.methods.cas_spec.CASSpec": "skipbench.contrib.methods.cas_spec.CASSpec",
        "skipbench.methods.conflayers.ConfLayers": (
            "skipbench.contrib.methods.conflayers.ConfLayers"
        ),
        "skipbench.methods.knapspec_choices.KnapSpecChoices": (
            "skipbench.contrib.lowbit.knapspec_choices.KnapSpecChoices"
        ),
        "skipbench.methods.leap.LEAP": "skipbench.contrib.methods.leap.LEAP",
    },
    "default": {"method": "auto"},
    "command": {
        "bundle": "skipbench.contrib.artifact.bundle_command.Bundle",
        "card": "skipbench.contrib.artifact.card_command.Card",
        "project": "skipbench.contrib.artifact.project_command.Project",
        "serve": "skipbench.contrib.serve.command.Serve",
        "verify": "skipbench.contrib.oracle.command.Verify",
    },
    "profile": {"rounds": "skipbench.contrib.artifact.round_costs.measure_rounds"},
    "ranks": {
        "launched": "skipbench.contrib.ranks.ranks.launched_by_torchrun",
        "load": "skipbench.contrib.ranks.ranks.load_on_ranks",
        "serve": "skipbench.contrib.ranks.ranks.serve",
    },
    "tracker": {
        name: f"skipbench.contrib.track.trackers.{name}"
        for name in ("tensorboard", "mlflow", "wandb")
    },
    "api": {
        "assert_lossless": "skipbench.contrib.oracle.api.assert_lossless",
        "verify": "skipbench.contrib.oracle.api.verify",
    },
}
"""By kind and name: `module.attribute`; `moved`: where a class is now, by the path in records."""
