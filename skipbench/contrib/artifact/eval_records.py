"""A run as a record of Every Eval Ever, schema 0.3.0 (arXiv:2606.14516), `eval.schema.json`."""

import hashlib
import re
import time
import uuid
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from operator import attrgetter
from typing import Any

from skipbench.contrib.artifact.claims import hardware, quantities_of
from skipbench.contrib.servers.published import served
from skipbench.metrics.interval import Interval
from skipbench.runs.run import Run

SCHEMA = "0.3.0"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def eval_record(run: Run) -> tuple[str, dict[str, Any]]:
    """Path below `every_eval_ever` and contents of the record of a run that is done."""
    path, dataset = str(run.setting("model.path")), run.setting("dataset.name")
    model = path if HUB_ID.fullmatch(path) else f"skipbench/{run.model}"
    key = hashlib.sha256(str(run.id).encode()).digest()
    file = f"data/{dataset}/{model}/{uuid.UUID(bytes=key[:16], version=4)}.json"
    timestamp = _seconds(run.provenance.started)
    return file, {
        "schema_version": SCHEMA,
        "evaluation_id": f"{dataset}/{model}/{run.id}",
        **({"evaluation_timestamp": timestamp} if timestamp else {}),
        "retrieved_timestamp": str(time.time()),
        "source_metadata": {
            "source_name": "skipbench",
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {
            "name": "skipbench",
            "version": run.provenance.versions.get("skipbench") or version("skipbench"),
            "additional_details": {"commit": str(run.provenance.commit)},
        },
        "model_info": {
            "name": run.model,
            "id": model,
            "inference_engine": {
                "name": run.provenance.engine if served(run) else f"skipbench, {run.origin.engine}",
                "version": "unknown" if served(run) else version("skipbench"),
            },
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if model == path else "unknown",
                "weights_sha256": str(run.origin.weights_sha256),
                "dtype": str(run.origin.dtype),
                "hardware": hardware(run.provenance),
            },
        },
        "evaluation_results": _results(run),
    }


def _seconds(started: str) -> str | None:
    """Since 1970; None for a time that is not known, or none."""
    with suppress(ValueError, OverflowError):
        return str(int(datetime.fromisoformat(started).timestamp()))
    return None


def _results(run: Run) -> list[dict[str, Any]]:
    metrics = run.measured
    numbers = [
        (name, words, unit, attrgetter(name)(metrics), attrgetter(ends)(metrics) if ends else None)
        for name, (words, unit, ends) in quantities_of(run).items()
    ]
    scores = metrics.score.method if metrics.score else {}
    numbers += [(k, f"score of the output: {k}", "points", x, None) for k, x in scores.items()]
    return [_result(run, *number) for number in numbers if number[3] is not None]


def _result(
    run: Run, name: str, words: str, unit: str, value: float, ends: Interval | None
) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": run.measured.samples}
    if ends is not None:
        low, high = ends
        uncertainty["confidence_interval"] = {"lower": low, "upper": high, "confidence_level": 0.95}
    return {
        "evaluation_result_id": f"{run.id}/{name}",
        "evaluation_name": f"{run.dataset}: {run.method}",
        "source_data": {"dataset_name": run.setting("dataset.name"), "source_type": "other"},
        "metric_config": {
            "evaluation_description": words,
            "metric_id": f"skipbench.{name}",
            "metric_name": name,
            "metric_unit": unit,
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1 if unit == "proportion" else "Infinity",
        },
        "score_details": {"score": value, "uncertainty": uncertainty},
        "generation_config": {
            "generation_args": {
                "temperature": run.setting("decoding.temperature"),
                "top_p": run.setting("decoding.top_p"),
                "top_k": run.setting("decoding.top_k"),
                "max_tokens": run.setting("dataset.max_new_tokens"),
                "execution_command": " ".join(run.provenance.argv),
            },
            "additional_details": {"method": run.method},
        },
    }
