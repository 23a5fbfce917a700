"""Cost of `pulumi up` for many jobs, compared with `kubectl apply --server-side`."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from devcluster.environment import variables
from devcluster.lifecycle import Cluster
from devcluster.paths import CHECKOUT
from tools.bench.outcome import Goal, print_line
from tools.bench.processes import ResourceUsage, measured, measured_together
from tools.bench.scale_cluster import (
    VOLCANO_JOBS,
    create,
    delete_all,
    gangs,
    prerequisites,
    settings_of,
    simulated_cluster,
)

KUBECTL = "kubectl apply --server-side"
PULUMI, ONE_STACK = "pulumi up, concurrent stacks", "pulumi up, one stack"
LARGEST_STACK = 100
"""Maximum number of jobs that are also measured in a single stack."""
MAX_RATIO = 3.0
MAX_GROWTH = 2.0
_PODS = 8
_MAX_CONCURRENT = max(1, len(os.sched_getaffinity(0)))
ENGINE = {"GOGC": "400"}
"""Environment variables that docs/scale.md recommends for large updates.

They save time but cost memory.
"""
PROGRAM = '''
"""Program of a team's stack, which contains training jobs on an existing platform."""

import pulumi

from tools.bench.scale_cluster import IMAGE, NAMESPACE, QUEUE, configuration
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
    """Measure `pulumi up` and `kubectl apply` alternately for each number of jobs.

    The largest number is measured only once. The jobs are in stacks of `per_stack` jobs, which are
    updated concurrently, one stack per core. Numbers up to `LARGEST_STACK` are also measured with
    all jobs in a single stack.
    """
    samples: Samples = {size: {} for size in sizes}
    # Without nodes, all jobs wait, so only their creation is measured.
    with simulated_cluster(0) as cluster, tempfile.TemporaryDirectory() as directory:
        create(cluster, prerequisites(settings_of(1, _PODS)))
        for size in sizes:
            methods = _methods(size, per_stack)
            for turn in range(1 if size == max(sizes) else repetitions):
                for method, run in methods.items():
                    work = Path(directory) / f"{size}-{turn}-{len(list(Path(directory).iterdir()))}"
                    work.mkdir()
                    used = run(cluster, work, size)
                    samples[size].setdefault(method, []).append(asdict(used))
                    print_line(
                        f"  {size} jobs, {method}: {used.seconds:.1f} s, {used.cpu_seconds:.1f} s "
                        f"of CPU time, {used.peak_mib:.0f} MiB"
                    )
                    delete_all(cluster, VOLCANO_JOBS)
    return {"jobsPerStack": per_stack, "stacksAtOnce": _MAX_CONCURRENT, "samples": samples}


def _methods(size: int, per_stack: int) -> dict[str, Callable[[Cluster, Path, int], ResourceUsage]]:
    methods: dict[str, Callable[[Cluster, Path, int], ResourceUsage]] = {
        KUBECTL: _kubectl,
        PULUMI: partial(_pulumi, per_stack=per_stack),
    }
    if per_stack < size <= LARGEST_STACK:
        methods[ONE_STACK] = partial(_pulumi, per_stack=size)
    return methods


def update_goals(result: dict[str, Any]) -> list[Goal]:
    """Return the goals for 100 and 1,000 jobs, computed from medians."""
    samples: Samples = result["samples"]
    goals = []
    for method in (PULUMI, ONE_STACK):
        if method in samples.get(100, {}):
            ratio = _median(samples, 100, method) / _median(samples, 100, KUBECTL)
            name = f"{method}, 100 jobs, relative to kubectl apply"
            goals.append(Goal(name, ratio, MAX_RATIO, at_most=True))
    if {100, 1000} <= samples.keys():
        growth = (_median(samples, 1000, PULUMI) / 1000) / (_median(samples, 100, PULUMI) / 100)
        name = f"{PULUMI}, seconds per job with 1,000 jobs, relative to 100 jobs"
        goals.append(Goal(name, growth, MAX_GROWTH, at_most=True))
    return goals


def _median(samples: Samples, size: int, method: str) -> float:
    return statistics.median(used["seconds"] for used in samples[size][method])


def _kubectl(cluster: Cluster, directory: Path, size: int) -> ResourceUsage:
    objects = gangs(settings_of(size, _PODS))
    file = directory / "jobs.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    command = [*cluster.kubectl, "apply", "--server-side", f"--filename={file}"]
    return measured(command, directory, os.environ)


def _pulumi(cluster: Cluster, directory: Path, size: int, *, per_stack: int) -> ResourceUsage:
    runtime = {"name": "python", "options": {"virtualenv": str(CHECKOUT / ".venv")}}
    (directory / "Pulumi.yaml").write_text(yaml.safe_dump({"name": "scale", "runtime": runtime}))
    (directory / "__main__.py").write_text(PROGRAM)
    (directory / "state").mkdir()
    environment = {
        **os.environ,
        **variables(cluster.layout, cluster.toolchain, cluster.spec.kind),
        **ENGINE,
        "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
        "PYTHONPATH": str(CHECKOUT),
    }
    stacks = {f"team-{first}": first for first in range(0, size, per_stack)}
    for stack, first in stacks.items():
        jobs = min(per_stack, size - first)
        config = {"scale:jobs": jobs, "scale:first": first, "scale:pods": _PODS}
        (directory / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))
    init = ["pulumi", "stack", "init", "--non-interactive"]
    update = ["pulumi", "up", "--yes", "--skip-preview", "--non-interactive", "--suppress-outputs"]
    # Create the first stack alone, because it creates files that all stacks of the project share.
    # The resource usage of `pulumi stack init` is ignored.
    measured([*init, "--stack=team-0"], directory, environment)
    others = [[*init, f"--stack={stack}"] for stack in list(stacks)[1:]]
    measured_together(others, directory, environment, _MAX_CONCURRENT)
    commands = [[*update, f"--stack={stack}"] for stack in stacks]
    return measured_together(commands, directory, environment, _MAX_CONCURRENT)
