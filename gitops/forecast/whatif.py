"""Changes to a snapshot: jobs to add or remove, nodes to add, and queue weights."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gitops.errors import GitopsError
from gitops.forecast.objects import amounts
from gitops.forecast.planned import not_simulated, planned_gangs
from gitops.forecast.shapes import quantities
from gitops.forecast.state import Amounts, Gang, Node, Queue, State
from policies.documents import DocumentError, read
from policies.evaluation import resource_of
from policies.views import View

_WEIGHT = re.compile(r"(?P<queue>[a-z0-9][-.a-z0-9]*)\.weight=(?P<weight>[1-9][0-9]{0,5})")
_NODES = re.compile(r"\+(?P<count>[1-9][0-9]{0,3})")


@dataclass(frozen=True)
class Changes:
    """Changes to simulate, in the syntax of the command's arguments."""

    add: Sequence[Path] = ()
    remove: Sequence[str] = ()
    nodes: str = ""
    queues: Sequence[str] = ()

    def apply(self, state: State) -> tuple[State, list[str]]:
        """Return the changed snapshot and the assumptions made.

        Raises:
            GitopsError: If a change is invalid, or refers to objects that are not in the snapshot.
        """
        assumptions: list[str] = []
        changed = state.model_copy(update={"gangs": _without(state.gangs, self.remove)})
        for file in self.add:
            changed, notes = with_manifests(changed, _views(file), f"--add: {file}")
            assumptions += notes
        nodes = list(state.nodes)
        if self.nodes:
            more = _added_nodes(state, self.nodes)
            nodes += more
            model = more[0].allocatable
            text = ", ".join(f"{value} {name}" for name, value in model.items() if "/" in name)
            assumptions.append(
                f"each added node has {text or 'no devices'}, like the most common node type"
            )
        queues = _with_weights(state, self.queues)
        return changed.model_copy(update={"nodes": nodes, "queues": queues}), assumptions


def _without(gangs: Iterable[Gang], names: Sequence[str]) -> list[Gang]:
    kept = list(gangs)
    for name in names:
        chosen = [g for g in kept if name in (g.name, f"{g.namespace}/{g.name}")]
        if len(chosen) != 1:
            known = ", ".join(sorted(f"{g.namespace}/{g.name}" for g in gangs)[:20])
            problem = "matches several gangs" if chosen else "is not in the snapshot"
            advice = f"use one of {known}" if known else "the snapshot contains no gangs"
            raise GitopsError(f"--remove {name} {problem}: {advice}")
        kept.remove(chosen[0])
    return kept


def _views(file: Path) -> list[View]:
    try:
        documents = list(read(str(file), file.read_bytes()))
    except (OSError, DocumentError) as error:
        raise GitopsError(f"--add: cannot read {file}: {error}") from None
    for each in documents:
        metadata = each.manifest.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("name"):
            raise GitopsError(f"--add: {file}, line {each.line()}: metadata.name is missing")
    return [View(resource_of(each.manifest)) for each in documents]


def with_manifests(state: State, views: Sequence[View], source: str) -> tuple[State, list[str]]:
    """Return the snapshot with the gangs of the manifests added, and the assumptions made.

    Raises:
        GitopsError: If the manifests contain no gang, or the snapshot already contains a gang or
            lacks its queue or PriorityClass. The message begins with `source`.
    """
    planned = planned_gangs(views, state.taken)
    if not planned.gangs:
        raise GitopsError(
            f"{source} contains no gang that Volcano schedules: add the manifests of a job"
        )
    present = {gang.key for gang in state.gangs}
    for gang in planned.gangs:
        check(gang, state, source)
        if gang.key in present:
            raise GitopsError(
                f"{source}: {'/'.join(gang.key)} is already in the snapshot; omit its manifest"
            )
    assumptions = [not_simulated(title) for title in planned.omitted]
    return state.model_copy(update={"gangs": [*state.gangs, *planned.gangs]}), assumptions


def check(gang: Gang, state: State, source: str) -> None:
    """Raise GitopsError if the snapshot lacks the queue or the PriorityClass of a gang."""
    queues = [each.name for each in state.queues]
    classes = [each.name for each in state.priority_classes]
    if gang.queue not in queues:
        raise GitopsError(
            f"{source}: {gang.name} is in queue {gang.queue}, but the snapshot contains only "
            f"{', '.join(queues)}"
        )
    if gang.priority_class and gang.priority_class not in classes:
        raise GitopsError(
            f"{source}: {gang.name} has PriorityClass {gang.priority_class}, but the snapshot "
            f"contains only {', '.join(classes)}"
        )


def _added_nodes(state: State, change: str) -> list[Node]:
    match = _NODES.fullmatch(change)
    if match is None:
        raise GitopsError(
            f"--nodes {change} is not a valid number of nodes to add: use a value like +4"
        )
    if not state.nodes:
        raise GitopsError("--nodes: the snapshot has no node to copy")
    kinds = Counter(repr(sorted(node.allocatable.items())) for node in state.nodes)
    most_common = kinds.most_common(1)[0][0]
    nodes = [n for n in state.nodes if repr(sorted(n.allocatable.items())) == most_common]
    model = nodes[0]
    return [
        model.model_copy(
            update={
                "name": f"added-{number}",
                "labels": {**model.labels, "kubernetes.io/hostname": f"added-{number}"},
                "taints": [t for t in model.taints if all(t in node.taints for node in nodes)],
                "unschedulable": False,
                "reserved": _common_reservations(nodes),
            }
        )
        for number in range(1, int(match["count"]) + 1)
    ]


def _common_reservations(nodes: Iterable[Node]) -> Amounts:
    """Return the resources that are reserved on every node, for example for DaemonSet pods."""
    reserved = [amounts(node.reserved) for node in nodes]
    shared = set.intersection(*map(set, reserved))
    return quantities({name: min(each[name] for each in reserved) for name in sorted(shared)})


def _with_weights(state: State, changes: Sequence[str]) -> list[Queue]:
    if changes and state.plugins and "proportion" not in state.plugins:
        raise GitopsError(
            f"--queue {changes[0]} has no effect: only the plugin proportion uses weights, but the "
            "scheduler in the snapshot does not use this plugin; omit --queue"
        )
    by_name = {queue.name: queue for queue in state.queues}
    for change in changes:
        match = _WEIGHT.fullmatch(change)
        if match is None:
            raise GitopsError(
                f"--queue {change} is not a valid change: use a value like vision.weight=3"
            )
        if (queue := by_name.get(match["queue"])) is None:
            raise GitopsError(f"--queue {change}: the snapshot contains only {', '.join(by_name)}")
        spec = {**queue.spec, "weight": int(match["weight"])}
        by_name[queue.name] = queue.model_copy(update={"spec": spec})
    return list(by_name.values())
