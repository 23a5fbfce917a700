"""`make up`, told from beginning to end: cluster, stack, training, serving, a first prediction."""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from devcluster import docker_plugin, environment, lifecycle
from devcluster.demands import of_stack
from devcluster.deploy import predict, stack
from devcluster.deploy.recovery import recover
from devcluster.deploy.runs import Run, Runs
from devcluster.lifecycle import Cluster
from devcluster.paths import CHECKOUT
from devcluster.progress import Reporter
from devcluster.spec import ClusterSpec, Kind

STACKS = {Kind.REAL: "dev", Kind.SIMULATED: "simulated"}


@dataclass
class Told:
    """What happened, for the table at the end."""

    changes: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    runs: list[tuple[Run, str, str]] = field(default_factory=list)
    predictions: list[tuple[str, str, str]] = field(default_factory=list)


def tell(spec: ClusterSpec, reporter: Reporter) -> int:
    """Brings everything up and prints a summary; 0 when all of it works."""
    registry = f"127.0.0.1:{spec.network.registry_port}"
    demands = of_stack(CHECKOUT / f"Pulumi.{STACKS[spec.kind]}.yaml", registry)
    cluster = lifecycle.up(spec, reporter, demands)
    told = Told()
    _deploy(cluster, reporter, told)
    if spec.kind is Kind.REAL:
        _train(cluster, reporter, told)
        right = _serve(cluster, reporter, told)
    else:
        _place(cluster, reporter, told)
        right = True
    _summarise(cluster, reporter, told)
    return 0 if right else 1


def _deploy(cluster: Cluster, reporter: Reporter, told: Told) -> None:
    variables = environment.variables(cluster.layout, cluster.toolchain, cluster.spec.kind)
    if cluster.spec.kind is Kind.REAL:
        home, python = cluster.toolchain.pulumi_home, Path(sys.executable)
        plugin = docker_plugin.install(home, python, variables["PATH"])
        if not plugin.official:
            reporter.say(f"images are built by {plugin.note}")
    target = stack.Stack(STACKS[cluster.spec.kind], cluster.layout, variables)
    target.select()
    if cleared := recover(target, cluster.kubectl):
        reporter.say(f"{cleared} operations of an update that was killed are done again")
    with reporter.step(f"pulumi preview of stack {target.name}, judged by the policy pack") as step:
        told.changes = target.preview(step.update)
        step.detail = "accepted, " + stack.describe_plan(told.changes)
    if not stack.is_unchanged(told.changes):
        with reporter.step(f"pulumi up of stack {target.name}") as step:
            told.changes = target.update(step.update)
            step.detail = stack.describe(told.changes)
    told.outputs = target.outputs()


def _runs(told: Told) -> list[Run]:
    return [Run.of(key, output) for key, output in told.outputs.get("runs", {}).items()]


def _train(cluster: Cluster, reporter: Reporter, told: Told) -> None:
    runs = Runs(cluster.kubectl)
    for run in _runs(told):
        with reporter.step(f"training run {run.name}") as step:
            ended = runs.wait(run, step.update)
            step.detail = ended.phase
        told.runs.append((run, ended.phase, ended.result))


def _place(cluster: Cluster, reporter: Reporter, told: Told) -> None:
    runs = Runs(cluster.kubectl)
    for run in _runs(told):
        with reporter.step(f"gang of {run.name}") as step:
            bound = runs.wait_bound(run, step.update)
            step.detail = f"{bound} pods have a node"
        told.runs.append((run, f"{bound} pods placed together", "not run: the nodes are simulated"))


def _serve(cluster: Cluster, reporter: Reporter, told: Told) -> bool:
    right = True
    for key, service in told.outputs.get("inference", {}).items():
        url = predict.service_url(cluster.kubectl, service)
        with reporter.step(f"inference service {key}") as step:
            model = service["model"]
            metadata = predict.wait_ready(url, model, service.get("run"), step.update)
            version = f"version {metadata['versions'][0]}"
            step.detail = f"serves {predict.served_run(metadata)}, {version}"
        said = predict.predict(url, model, metadata)
        right = right and said.right
        verdict = "right" if said.right else "WRONG"
        answer = f"a held-out {said.expected} is taken for {said.answer} ({verdict})"
        # The outputs cannot tell: when they were written the training had not ended.
        answer = f"{version}, sha256 {predict.served_digest(metadata)}\n{answer}"
        told.predictions.append((key, f"{url}/v2/models/{model}", answer))
    return right


def _summarise(cluster: Cluster, reporter: Reporter, told: Told) -> None:
    table = Table(title=f"stack {STACKS[cluster.spec.kind]}", show_header=False, title_style="bold")
    table.add_row("resources", stack.describe(told.changes))
    for queue in told.outputs.get("queues", []):
        table.add_row("queue", f"{queue}: {_queue_state(cluster, queue)}")
    for run, phase, result in told.runs:
        shape = f"{run.nodes} x {run.gpus_per_node} GPU, {run.kind}"
        lines = filter(None, [f"{run.name} ({shape})", phase, result])
        table.add_row("training run", "\n".join(lines))
    for key, url, answer in told.predictions:
        table.add_row("inference", f"{key}: {url}\n{answer}")
    reporter.console.print(table)


def _queue_state(cluster: Cluster, queue: str) -> str:
    done = subprocess.run(
        [*cluster.kubectl, "get", "queues.scheduling.volcano.sh", queue, "--output=json"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return "not found"
    found = json.loads(done.stdout)
    gpus = found["spec"].get("capability", {}).get("nvidia.com/gpu", "no limit of")
    counts = found.get("status", {})
    states = [f"{counts[name]} {name}" for name in ("running", "pending") if counts.get(name)]
    state = str(counts.get("state", "Unknown"))
    return f"{state}, {gpus} GPUs" + (f", {', '.join(states)}" if states else "")
