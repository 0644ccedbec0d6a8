"""What is ours beyond the papers and their baselines; the core never imports it.

Its commands, methods and parts of engines are found by name in `TABLE`, and loaded when used.
"""

TABLE: dict[str, dict[str, str]] = {
    "engine": {"cpu": "skipbench.contrib.cpu.engine.CpuEngine"},
    "kernel": {
        "best_tokens": "skipbench.contrib.cpu.top_tokens.best_tokens",
        "choices": "skipbench.contrib.cpu.top_tokens.choices",
    },
    "variant": {
        "int8": "skipbench.contrib.lowbit.copy.Int8Copy",
        "int4": "skipbench.contrib.lowbit.copy.Int4Copy",
    },
    "model": {"_package": "skipbench.contrib.gguf.settings.PackagedModel"},
    "checkpoint": {
        "gguf": "skipbench.contrib.gguf.checkpoint.folder_of",
        "package": "skipbench.contrib.gguf.package.fetched",
    },
    "bundle": {"servers": "skipbench.contrib.servers.public.PublicRow"},
    "summary": {"servers": "skipbench.contrib.servers.summary.summarised"},
    "command": {
        "bench": "skipbench.contrib.servers.command.Bench",
        "bundle": "skipbench.contrib.artifact.bundle_command.Bundle",
        "chat": "skipbench.contrib.chat.command.Chat",
        "predict": "skipbench.contrib.artifact.predict_command.Predict",
        "serve": "skipbench.contrib.serve.command.Serve",
        "verify": "skipbench.contrib.oracle.command.Verify",
    },
    "api": {
        "assert_lossless": "skipbench.contrib.oracle.api.assert_lossless",
        "custom_generate": "skipbench.contrib.export.custom_generate.CustomGenerate",
        "verify": "skipbench.contrib.oracle.api.verify",
    },
}
"""By kind and name: `module.attribute`."""
