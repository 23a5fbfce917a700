"""All steps of `make up`: cluster, stack, training, serving and a first prediction."""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.table import Table

from devcluster import docker_plugin, environment, lifecycle
from devcluster.deploy import predict, stack
from devcluster.deploy.predict import NoPredictionError, Prediction
from devcluster.deploy.runs import Run, describe_result, wait, wait_for_sweep, wait_scheduled
from devcluster.deploy.stack import recover
from devcluster.lifecycle import Cluster
from devcluster.operators import stack_requirements
from devcluster.paths import CHECKOUT, Layout
from devcluster.progress import Reporter, Step
from devcluster.spec import ClusterSpec, Kind

STACKS = {Kind.REAL: "dev", Kind.SIMULATED: "simulated"}


@dataclass
class Summary:
    """Results for the table that is printed at the end."""

    changes: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    runs: list[tuple[Run, str, str]] = field(default_factory=list)
    """Runs with their states and results."""
    services: list[str] = field(default_factory=list)
    """Descriptions of the inference services."""


def bring_up(spec: ClusterSpec, reporter: Reporter) -> int:
    """Run all steps of `make up`, print a summary and return the exit status."""
    registry = f"127.0.0.1:{spec.network.registry_port}"
    requirements = stack_requirements(CHECKOUT / f"Pulumi.{STACKS[spec.kind]}.yaml", registry)
    summary = Summary()
    deployment = Deployment(reporter)
    with deployment:
        # The first preview can run while the cluster is starting, because it requires only the API
        # server. Later previews may require Volcano's webhooks.
        is_new = not Layout.of(spec.kind).control_plane.exists()
        can_preview_early = is_new and spec.kind is Kind.REAL and not requirements.operators
        cluster = lifecycle.up(
            spec, reporter, requirements, deployment if can_preview_early else None
        )
        deployment.finish(cluster, summary)
    correct = True
    if spec.kind is Kind.REAL:
        _train(cluster, reporter, summary)
        correct = _serve(cluster, reporter, summary)
    else:
        _schedule(cluster, reporter, summary)
    reporter.console.print(render(cluster, summary))
    return 0 if correct else 1


class _Selected(NamedTuple):
    """The stack, its Docker plugin (None with simulated nodes), and its pending operations."""

    stack: stack.Stack
    plugin: docker_plugin.Plugin | None
    pending: list[dict[str, Any]]


def _select(cluster: Cluster) -> _Selected:
    variables = environment.variables(cluster.layout, cluster.toolchain, cluster.spec.kind)
    plugin = None
    if cluster.spec.kind is Kind.REAL:
        home, python = cluster.toolchain.pulumi_home, Path(sys.executable)
        plugin = docker_plugin.install(home, python, variables["PATH"])
    adoption_variables = {**variables, **environment.ADOPTION_VARIABLES}
    target = stack.Stack(STACKS[cluster.spec.kind], cluster.layout, adoption_variables)
    target.select()
    return _Selected(target, plugin, target.pending_operations())


class Deployment:
    """Preview and update of the stack. The preview may begin while the cluster is starting."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._background = ThreadPoolExecutor(1)
        self._selected: Future[_Selected] | None = None
        self._started: tuple[stack.Stack, stack.Operation] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.shutdown()
        if self._started is not None:
            self._started[1].end()

    def prepare(self, cluster: Cluster) -> "Future[_Selected]":
        """Start selecting the stack in the background."""
        self._selected = self._background.submit(_select, cluster)
        return self._selected

    def begin(self, cluster: Cluster) -> tuple[stack.Stack, stack.Operation]:
        """Start the preview; return the stack and the preview."""
        target, plugin, pending = (self._selected or self.prepare(cluster)).result()
        if plugin is not None and not plugin.official:
            self._reporter.say(f"images are built by {plugin.note}")
        if pending:
            recover(target, pending, cluster.kubectl)
            self._reporter.say(
                f"recovered {len(pending)} pending operations of an interrupted update"
            )
        self._started = target, target.preview()
        return self._started

    def finish(self, cluster: Cluster, summary: Summary) -> None:
        """Wait for the preview, starting it if necessary, and update the stack."""
        target, preview = self._started or self.begin(cluster)
        title = f"pulumi preview of stack {target.name} with the policy pack"
        with self._reporter.step(title) as step:
            summary.changes = preview.finish(step.update)
            step.detail = "accepted, " + stack.describe_plan(summary.changes)
        if not stack.is_unchanged(summary.changes):
            with self._reporter.step(f"pulumi up of stack {target.name}") as step:
                summary.changes = target.update().finish(step.update)
                step.detail = stack.describe(summary.changes)
            if preview.deletes_new_objects():
                # An earlier update failed while it was replacing the objects, and this update has
                # reverted the replacement.
                title = f"pulumi up --refresh of stack {target.name}: restores deleted objects"
                with self._reporter.step(title) as step:
                    step.detail = stack.describe(target.update("--refresh").finish(step.update))
        summary.outputs = target.outputs()


def _runs(summary: Summary) -> list[Run]:
    return [Run.of(key, output) for key, output in summary.outputs.get("runs", {}).items()]


def _train(cluster: Cluster, reporter: Reporter, summary: Summary) -> None:
    for run in _runs(summary):
        with reporter.step(f"training run {run.name}") as step:
            status = wait(cluster.kubectl, run, step.update)
            step.detail = str(status.state)
        summary.runs.append((run, str(status.state), describe_result(status.progress)))


def _schedule(cluster: Cluster, reporter: Reporter, summary: Summary) -> None:
    for run in _runs(summary):
        with reporter.step(f"gang of {run.name}") as step:
            pods = wait_scheduled(cluster.kubectl, run, step.update)
            step.detail = f"{pods} pods are scheduled"
        state = f"{pods} pods scheduled together"
        summary.runs.append((run, state, "not trained: the nodes are simulated"))


def _serve(cluster: Cluster, reporter: Reporter, summary: Summary) -> bool:
    """Wait for all services; return False if any first prediction is wrong."""
    correct = True
    for key, service in summary.outputs.get("inference", {}).items():
        run = service.get("run")
        if (sweep := service.get("sweep")) is not None:
            with reporter.step(f"sweep {sweep}") as step:
                namespace = service["namespace"]
                run = wait_for_sweep(cluster.kubectl, namespace, sweep, step.update)
                step.detail = f"the winner is {run}"
        with reporter.step(f"inference service {key}") as step:
            address, metadata, outcome = _first_prediction(cluster.kubectl, service, run, step)
        correct = correct and (isinstance(outcome, NoPredictionError) or outcome.correct)
        summary.services.append(describe_service(key, address, metadata, outcome))
    return correct


def _first_prediction(
    kubectl: Sequence[str], service: dict[str, Any], run: str | None, step: Step
) -> tuple[str, dict[str, Any] | None, Prediction | NoPredictionError]:
    """Wait until a service serves a run; return its address, its model's metadata and a prediction.

    If there is no prediction, return the reason instead; the metadata may then be None.
    """
    model, metadata = service["model"], None
    try:
        predict.check_supported(service)
        url = predict.service_url(kubectl, service)
        address = f"{url}/v2/models/{model}"
        metadata = predict.wait_ready(url, model, run, step.update)
        version = metadata["versions"][0]
        step.detail = f"serves {predict.served_run(metadata)}, version {version}"
        return address, metadata, predict.predict(url, model, metadata)
    except NoPredictionError as reason:
        if metadata is not None:
            return address, metadata, reason
        predict.wait_endpoint(kubectl, service, step.update)
        step.detail = "a pod is ready"
        return service["url"], None, reason


def describe_service(
    key: str, address: str, metadata: dict[str, Any] | None, outcome: Prediction | NoPredictionError
) -> str:
    """Return a description of an inference service: its address, model and first prediction."""
    lines = [f"{key}: {address}"]
    if metadata is not None:
        # The stack's outputs were written before training finished, so ask the server.
        digest = predict.served_digest(metadata)
        lines.append(f"version {metadata['versions'][0]}, sha256 {digest}")
    unpredicted = isinstance(outcome, NoPredictionError)
    lines.append(f"no first prediction: {outcome}" if unpredicted else str(outcome))
    return "\n".join(lines)


def render(cluster: Cluster, summary: Summary) -> Table:
    """Return the table that `make up` prints at the end."""
    table = Table(title=f"stack {STACKS[cluster.spec.kind]}", show_header=False, title_style="bold")
    table.add_column()
    table.add_column(overflow="fold")  # a digest may be wider than the terminal
    table.add_row("resources", stack.describe(summary.changes))
    for queue in summary.outputs.get("queues", []):
        table.add_row("queue", f"{queue}: {_queue_state(cluster, queue)}")
    for run, state, outcome in summary.runs:
        shape = f"{run.nodes} x {run.gpus_per_node} GPU, {run.kind}"
        lines = filter(None, [f"{run.name} ({shape})", state, outcome])
        table.add_row("training run", "\n".join(lines))
    for service in summary.services:
        table.add_row("inference", service)
    return table


def _queue_state(cluster: Cluster, queue: str) -> str:
    done = subprocess.run(
        [*cluster.kubectl, "get", "queues.scheduling.volcano.sh", queue, "--output=json"],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return "not found"
    found = json.loads(done.stdout)
    gpus = found["spec"].get("capability", {}).get("nvidia.com/gpu", "no limit on")
    counts = found.get("status", {})
    states = [f"{counts[name]} {name}" for name in ("running", "pending") if counts.get(name)]
    state = str(counts.get("state", "Unknown"))
    return f"{state}, {gpus} GPUs" + (f", {', '.join(states)}" if states else "")
