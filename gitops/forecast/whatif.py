"""Changes of a snapshot: jobs to add or remove, nodes to add, and weights of queues."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gitops.errors import GitopsError
from gitops.forecast.shapes import planned
from gitops.forecast.state import Gang, Node, Queue, State
from kube.kinds import volcano

_WEIGHT = re.compile(r"(?P<queue>[a-z0-9][-.a-z0-9]*)\.weight=(?P<weight>[1-9][0-9]{0,5})")
_NODES = re.compile(r"\+(?P<count>[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Changes:
    """Changes to simulate, as the arguments of the command spell them."""

    add: Sequence[Path] = ()
    remove: Sequence[str] = ()
    nodes: str = ""
    queues: Sequence[str] = ()

    def apply(self, state: State) -> tuple[State, list[str]]:
        """Return the changed snapshot and the assumptions made.

        Raises:
            GitopsError: If a change is invalid or names what the snapshot does not have.
        """
        assumptions: list[str] = []
        gangs = _without(state.gangs, self.remove)
        added = [gang for file in self.add for gang in _gangs(file, state)]
        if twice := {(g.namespace, g.name) for g in gangs} & {(g.namespace, g.name) for g in added}:
            names = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(twice))
            raise GitopsError(f"--add: the snapshot has {names} already: add --remove for it")
        nodes = list(state.nodes)
        if self.nodes:
            more = _copies(state, self.nodes)
            nodes += more
            model = more[0].allocatable
            text = ", ".join(f"{value} {name}" for name, value in model.items() if "/" in name)
            assumptions.append(f"each added node has {text or 'no devices'}, as most nodes have")
        queues = _weighted(state.queues, self.queues)
        update = {"gangs": [*gangs, *added], "nodes": nodes, "queues": queues}
        return state.model_copy(update=update), assumptions


def _without(gangs: Iterable[Gang], names: Sequence[str]) -> list[Gang]:
    kept = list(gangs)
    for name in names:
        chosen = [g for g in kept if name in (g.name, f"{g.namespace}/{g.name}")]
        if len(chosen) != 1:
            known = ", ".join(sorted(f"{g.namespace}/{g.name}" for g in gangs)[:20]) or "no gangs"
            problem = "names several gangs" if chosen else "is not in the snapshot"
            raise GitopsError(f"--remove {name} {problem}: write one of {known}")
        kept.remove(chosen[0])
    return kept


def _gangs(file: Path, state: State) -> list[Gang]:
    try:
        documents = [found for found in yaml.safe_load_all(file.read_text("utf-8")) if found]
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise GitopsError(f"--add: cannot read {file}: {error}") from None
    made = [_gang(file, document, state) for document in documents]
    if not made:
        raise GitopsError(f"--add: {file} is empty: write the manifest of a Volcano Job to it")
    return made


def _gang(file: Path, job: Any, state: State) -> Gang:
    found = (job.get("apiVersion"), job.get("kind")) if isinstance(job, dict) else (None, None)
    if found != (f"{volcano.JOB.group}/{volcano.JOB.version}", volcano.JOB.kind):
        raise GitopsError(f"--add: {file} has {found[1]!r}: only a Volcano Job can be simulated")
    try:
        spec, metadata = job["spec"], job["metadata"]
        shapes = planned(job)
        queue, priority = spec.get("queue") or "default", spec.get("priorityClassName") or ""
        deadlines = [
            float(seconds)
            for task in spec["tasks"]
            if (seconds := task["template"]["spec"].get("activeDeadlineSeconds"))
        ]
        gang = Gang(
            namespace=metadata.get("namespace", "default"),
            name=metadata["name"],
            state="pending",
            queue=queue,
            priority_class=priority,
            minimum=spec.get("minAvailable") or sum(shape.count for shape in shapes),
            created=state.taken,
            deadline_seconds=min(deadlines, default=None),
            pods=shapes,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GitopsError(f"--add: {file} is not a valid Volcano Job: {error!r}") from None
    if not shapes:
        raise GitopsError(f"--add: {file}: spec.tasks has no pods: write at least one replica")
    if queue not in (names := [each.name for each in state.queues]):
        raise GitopsError(f"--add: {file}: queue {queue} is not in the snapshot, which has {names}")
    if priority and priority not in (names := [each.name for each in state.priority_classes]):
        raise GitopsError(
            f"--add: {file}: PriorityClass {priority} is not in the snapshot, which has {names}"
        )
    return gang


def _copies(state: State, change: str) -> list[Node]:
    match = _NODES.fullmatch(change)
    if match is None:
        raise GitopsError(f"--nodes {change} is not a valid number of nodes to add: write +4")
    if not state.nodes:
        raise GitopsError("--nodes: the snapshot has no node to copy")
    kinds = Counter(repr(sorted(node.allocatable.items())) for node in state.nodes)
    usual = kinds.most_common(1)[0][0]
    model = next(n for n in state.nodes if repr(sorted(n.allocatable.items())) == usual)
    return [
        model.model_copy(
            update={
                "name": f"added-{number}",
                "labels": {**model.labels, "kubernetes.io/hostname": f"added-{number}"},
                "unschedulable": False,
            }
        )
        for number in range(1, int(match["count"]) + 1)
    ]


def _weighted(queues: Sequence[Queue], changes: Sequence[str]) -> list[Queue]:
    found = {queue.name: queue for queue in queues}
    for change in changes:
        match = _WEIGHT.fullmatch(change)
        if match is None:
            raise GitopsError(f"--queue {change} is not a valid change: write vision.weight=3")
        if (queue := found.get(match["queue"])) is None:
            raise GitopsError(f"--queue {change}: the snapshot has only {', '.join(found)}")
        spec = {**queue.spec, "weight": int(match["weight"])}
        found[queue.name] = queue.model_copy(update={"spec": spec})
    return list(found.values())
