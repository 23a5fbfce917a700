"""Print the runs that MLflow and W&B have recorded, as JSON: read_tracking.py RUN_DIR.

The program runs in an environment with mlflow and wandb. MLFLOW_TRACKING_URI is the server's URL.
"""

import json
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 2**15
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run: a LevelDB log after a header of seven bytes."""
    content, place, record = path.read_bytes(), 7, b""
    while place < len(content):
        if BLOCK - place % BLOCK < 7:
            place += BLOCK - place % BLOCK
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


def values(items: Iterable[Any]) -> dict[str, Any]:
    """Return the items' values by name."""
    return {"/".join(each.nested_key) or each.key: json.loads(each.value_json) for each in items}


def offline_run(path: Path) -> dict[str, Any]:
    """Return the contents of an offline run's file."""
    run: dict[str, Any] = {"history": [], "summary": {}}
    for record in records(path):
        match record.WhichOneof("record_type"):
            case "run":
                run["id"] = record.run.run_id
                run["config"] = values(record.run.config.update)
            case "history":
                run["history"].append(values(record.history.item))
            case "summary":
                run["summary"] |= values(record.summary.update)
            case "exit":
                run["exit"] = record.exit.exit_code
    return run


def mlflow_run(client: MlflowClient, run: Any) -> dict[str, Any]:
    """Return the status, parameters, tags and all metric values of a run."""
    metrics = {}
    for name in run.data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        metrics[name] = [(each.step, each.value) for each in history]
    tags = {name: value for name, value in run.data.tags.items() if "mlflow." not in name}
    return {
        "status": run.info.status,
        "params": run.data.params,
        "tags": tags,
        "metrics": metrics,
    }


run_dir, client = Path(sys.argv[1]), MlflowClient()
experiments = [each.experiment_id for each in client.search_experiments()]
found = {
    "mlflow": [
        mlflow_run(client, run)
        for run in client.search_runs(experiments)
        if run.info.run_name == run_dir.name
    ],
    "wandb": [offline_run(path) for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb"))],
}
print(json.dumps(found))  # noqa: T201
