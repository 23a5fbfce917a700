"""What `pulumi up` of many jobs costs beside `kubectl apply --server-side` of the same objects."""

from __future__ import annotations

import json
import math
import os
import statistics
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.outcome import Goal, say
from benchmarks.processes import Used, measured
from benchmarks.scale_cluster import create, delete_all, simulated_cluster
from benchmarks.scale_jobs import VOLCANO_JOBS, checked, gangs, surroundings
from devcluster.environment import variables
from devcluster.lifecycle import Cluster
from devcluster.paths import CHECKOUT

PULUMI, KUBECTL = "pulumi up", "kubectl apply --server-side"
MAX_RATIO = 3.0
MAX_GROWTH = 2.0
_PODS = 8
PROGRAM = '''
"""A team's own stack: its jobs, on a platform that is there."""

import pulumi

from benchmarks.scale_jobs import IMAGE, NAMESPACE, QUEUE, configuration
from gpu_platform import (
    ClusterSettings,
    GpuNodes,
    Platform,
    TrainingJobSettings,
    TrainingJobs,
    connect,
)

config = pulumi.Config()
cluster = connect(ClusterSettings(context="gpu-platform-simulated"))
platform = Platform(
    namespace=NAMESPACE,
    claims={"checkpoints": "checkpoints"},
    gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
    queues=[QUEUE],
    images={},
)
numbers = (config.require_int(name) for name in ("jobs", "pods", "first"))
described = configuration(*numbers)["training"]["jobs"]
jobs = [
    platform.training_job(key, TrainingJobSettings.model_validate(job), image=IMAGE)
    for key, job in described.items()
]
TrainingJobs("training", jobs, pulumi.ResourceOptions(providers=[cluster]))
'''

Samples = dict[int, dict[str, list[dict[str, float]]]]


def updates(sizes: list[int], per_stack: int, repetitions: int) -> dict[str, Any]:
    """Samples of both, in turns, for each number of jobs; the largest is measured once.

    Of more than `per_stack` jobs the rest is in further stacks, updated one after the other; what
    is said of them is the sum of the seconds and the peak of the memory.
    """
    samples: Samples = {size: {KUBECTL: [], PULUMI: []} for size in sizes}
    # Without nodes all jobs wait, so nothing but the creation of the jobs is measured.
    with simulated_cluster(0) as cluster, tempfile.TemporaryDirectory() as folder:
        create(cluster, surroundings(checked(1, _PODS)))
        for size in sizes:
            for turn in range(1 if size == max(sizes) else repetitions):
                for what, run in ((KUBECTL, _kubectl), (PULUMI, _pulumi)):
                    work = Path(folder) / f"{size}-{turn}-{what.split()[0]}"
                    work.mkdir()
                    used = run(cluster, work, size, per_stack)
                    samples[size][what].append(asdict(used))
                    say(
                        f"  {size} jobs, {what}: {used.seconds:.1f} s, {used.cpu_seconds:.1f} s "
                        f"of the processors, {used.peak_mib:.0f} MiB"
                    )
                    delete_all(cluster, VOLCANO_JOBS)
    return {"jobsPerStack": per_stack, "samples": samples}


def update_goals(result: dict[str, Any]) -> list[Goal]:
    """What is wanted where 100 and 1,000 jobs were measured; medians count."""
    samples: Samples = result["samples"]
    goals = []
    if 100 in samples:
        ratio = _median(samples, 100, PULUMI) / _median(samples, 100, KUBECTL)
        name = "pulumi up of 100 jobs, to kubectl apply of the same"
        goals.append(Goal(name, ratio, MAX_RATIO, at_most=True))
    if {100, 1000} <= samples.keys():
        growth = (_median(samples, 1000, PULUMI) / 1000) / (_median(samples, 100, PULUMI) / 100)
        name = "pulumi up, seconds a job of 1,000 to those of 100"
        goals.append(Goal(name, growth, MAX_GROWTH, at_most=True))
    return goals


def _median(samples: Samples, size: int, what: str) -> float:
    return statistics.median(used["seconds"] for used in samples[size][what])


def _kubectl(cluster: Cluster, folder: Path, size: int, _per_stack: int) -> Used:
    objects = gangs(checked(size, _PODS))
    file = folder / "jobs.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    command = [*cluster.kubectl, "apply", "--server-side", f"--filename={file}"]
    return measured(command, folder, os.environ)


def _pulumi(cluster: Cluster, folder: Path, size: int, per_stack: int) -> Used:
    runtime = {"name": "python", "options": {"virtualenv": str(CHECKOUT / ".venv")}}
    (folder / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "scale", "runtime": runtime}))
    (folder / "__main__.py").write_text(PROGRAM)
    (folder / "state").mkdir()
    environment = {
        **os.environ,
        **variables(cluster.layout, cluster.toolchain, cluster.spec.kind),
        "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
        "PYTHONPATH": str(CHECKOUT),
    }
    found = []
    for number in range(math.ceil(size / per_stack)):
        stack, first = f"team-{number}", number * per_stack
        jobs = min(per_stack, size - first)
        config = {"scale:jobs": jobs, "scale:first": first, "scale:pods": _PODS}
        (folder / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))
        measured(["pulumi", "stack", "init", stack, "--non-interactive"], folder, environment)
        update = ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive"]
        command = [*update, "--suppress-outputs", "--stack", stack]
        found.append(measured(command, folder, environment))
        if size > per_stack:
            say(f"    {first + jobs} of {size} jobs: {found[-1].seconds:.1f} s")
    return Used(
        round(sum(used.seconds for used in found), 3),
        round(sum(used.cpu_seconds for used in found), 3),
        max(used.peak_mib for used in found),
    )
