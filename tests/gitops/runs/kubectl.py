"""A stand-in for kubectl that reads its output from files."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# `get pods,events,…` prints the file `all`, `get KIND` prints KIND, and `logs … POD` prints
# logs-POD if it exists, otherwise `log`. The second call prints NAME.2 if it exists. `patch` and
# `delete` append their arguments to `patches` and replace the file `all` with `patched`.
PROGRAM = """#!/bin/sh
cd "$(dirname "$0")" || exit 9
case "$1" in
api-resources) exec cat names ;;
logs) file="logs-$4"; [ -e "$file" ] || file=log ;;
patch | delete) shift; echo "$*" >> patches; exec mv patched all ;;
get) [ -e silent ] && { echo "connection refused" >&2; exit 1; }
     case "$2" in *,*) file=all ;; *) file="$2" ;; esac ;;
esac
[ -e "$file" ] || { echo "forbidden: $file" >&2; exit 1; }
cat "$file"
if [ -e "$file.2" ]; then mv "$file.2" "$file"; fi
"""
KINDS = {
    "pods": "Pod",
    "events": "Event",
    "nodes": "Node",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "priorityclasses.scheduling.k8s.io": "PriorityClass",
    "jobs.batch": "batch/v1 Job",
    "jobs.batch.volcano.sh": "batch.volcano.sh/v1alpha1 Job",
    "jobflows.flow.volcano.sh": "JobFlow",
    "podgroups.scheduling.volcano.sh": "PodGroup",
    "queues.scheduling.volcano.sh": "Queue",
    "pytorchjobs.kubeflow.org": "PyTorchJob",
    "trainjobs.trainer.kubeflow.org": "TrainJob",
    "rayjobs.ray.io": "RayJob",
    "jobsets.jobset.x-k8s.io": "JobSet",
}


def install(
    folder: Path, objects: Sequence[dict[str, Any]], *, log: str = "", names: Sequence[str] = ()
) -> Path:
    """Write the program and its output files. `names` are the cluster's API resources."""
    program = folder / "kubectl"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (folder / "names").write_text("\n".join(names or KINDS))
    (folder / "log").write_text(log)
    put(folder, objects)
    return program


def put(folder: Path, objects: Sequence[dict[str, Any]], name: str = "all") -> None:
    """Write the cluster's objects; the second call returns those written to `all.2`."""
    (folder / name).write_text(json.dumps({"items": list(objects)}))


def forbid(folder: Path, *kinds: str) -> None:
    """Deny the user permission to list these kinds."""
    items = json.loads((folder / "all").read_text())["items"]
    (folder / "all").unlink()
    for resource, kind in KINDS.items():
        version, _, name = kind.rpartition(" ")
        if resource not in kinds:
            chosen = (o for o in items if o["kind"] == name)
            put(folder, [o for o in chosen if version in (o.get("apiVersion"), "")], resource)
