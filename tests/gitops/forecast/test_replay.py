"""Replays of a snapshot, with a fake scheduler that preempts in a chosen session."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from gitops.forecast.replay import Replay
from gitops.forecast.sandbox import PodState, Sandbox
from gitops.forecast.state import Gang, Queue, State
from tests.gitops.forecast.states import gang, state


class Scheduler:
    """A cluster whose scheduler preempts `victim` for `preemptor` on gpu-0 in one session."""

    volcano = "v1"
    generation = 0
    rejects_configuration = False

    def __init__(
        self,
        session: int,
        starts_after: int = 0,
        phases: dict[str, str] | None = None,
        behind_until: int = 0,
        unaware_until: int = 0,
    ) -> None:
        self.count = 0
        self._unaware_until = unaware_until
        self.preempting: set[str] = set()
        self._phases = phases or {}
        self._behind_until = behind_until
        self._session = session
        self._starts_after = starts_after
        self._pods: dict[str, dict[str, Any]] = {}

    def load(self, _: State) -> None:
        """Accept the state."""

    @contextmanager
    def scheduler_paused(self) -> Iterator[None]:
        """Accept the block."""
        yield

    def create_groups(self, groups: list[dict[str, Any]]) -> None:
        """Accept the groups."""

    def create_pods(self, pods: list[dict[str, Any]]) -> None:
        """Store the pods."""
        self._pods |= {pod["metadata"]["name"]: pod for pod in pods}

    def pods(self) -> list[dict[str, Any]]:
        """Return copies of the pods. Those on nodes run, new ones only after some sessions."""
        late = self._session <= self.count < self._session + self._starts_after
        status = {"phase": "Pending" if late else "Running"}
        return [{**pod, "spec": dict(pod["spec"]), "status": status} for pod in self._pods.values()]

    def pod_states(self) -> dict[str, PodState]:
        """Return the states of the pods."""
        return {
            pod["metadata"]["name"]: PodState(pod["spec"].get("nodeName"), pod["status"]["phase"])
            for pod in self.pods()
        }

    def mark(self) -> str:
        """Return the number of sessions as the name of a marker."""
        return str(self.count)

    def known_since(self, marker: str) -> int | None:
        """Return the sessions before the marker, or None while the scheduler is unaware of it."""
        return None if self.count < self._unaware_until else max(int(marker), self._unaware_until)

    def phases(self) -> dict[str, str]:
        """Return the PodGroups' phases."""
        if self.count < self._behind_until:
            return self._phases
        return {f"gang-0-{number:05}": "Inqueue" for number in range(3)}

    def end(self, *names: str, pods_only: bool = False) -> None:
        """Delete the pods of gangs."""
        self._pods = {k: pod for k, pod in self._pods.items() if not k.startswith(names)}

    def untried_preemptions(self, queues: set[str], since: int) -> set[str]:
        """Return all queues until the preempting session has ended."""
        self.preempting = queues
        return queues if since < self._session else set()

    def sessions(self) -> int:
        """Run the next session."""
        self.count += 1
        if self.count == self._session:
            self.end("gang-0-00000")
            for pod in self._pods.values():
                pod["spec"].setdefault("nodeName", "gpu-0")
        return self.count


def snapshot(other_queue: str, pods: int = 1, priority: int = 2000) -> State:
    """Return a state in which `high` waits; with one pod, `high` can preempt `low`."""

    def changed(made: Gang, **more: Any) -> Gang:
        return made.model_copy(update=more)

    gangs = [
        gang("low", 1, 8, "gpu-0", hour=7),
        changed(gang("other", 2, 8, "gpu-1", "gpu-2", hour=7), queue=other_queue),
        changed(gang("high", pods, 8, hour=8), priority=priority, priority_class="urgent"),
    ]
    queues = [Queue(name="vision"), Queue(name=other_queue)]
    return state().model_copy(update={"gangs": gangs, "queues": queues})


def started_replay(cluster: Scheduler, found: State) -> Replay:
    replay = Replay(cast(Sandbox, cluster), found)
    replay.start()
    return replay


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gitops.forecast.replay._POLL_SECONDS", 0)
    monkeypatch.setattr("gitops.forecast.replay._STABLE_LISTS", 0)


def test_replay_waits_for_a_preemption_in_a_later_session() -> None:
    cluster = Scheduler(session=10)
    replay = started_replay(cluster, snapshot("language"))
    assert [victim.name for victim in replay.victims] == ["low"]
    assert {run.gang.name: run.start for run in replay.runs} == {
        "low": None,
        "other": 0.0,
        "high": 0.0,
    }


@pytest.mark.parametrize(("left", "remaining"), [(None, 4), (10, 4), (2, 2)])
def test_restarted_gang_has_its_whole_deadline(left: int | None, remaining: int) -> None:
    found = snapshot("language")
    limits = {"deadline_seconds": 4 * 3600, "left_seconds": left and left * 3600}
    found.gangs[0] = found.gangs[0].model_copy(update=limits)
    low = started_replay(Scheduler(session=10), found).runs[0]
    assert (low.gang.name, low.remaining) == ("low", remaining * 3600)


def test_gang_gets_the_priority_of_its_class() -> None:
    # A snapshot does not contain the priority of planned gangs or gangs without pods.
    replay = started_replay(Scheduler(session=10), snapshot("language", priority=0))
    assert [victim.name for victim in replay.victims] == ["low"]


def test_gang_with_an_unknown_class_keeps_its_priority() -> None:
    found = snapshot("language").model_copy(update={"priority_classes": []})
    replay = started_replay(Scheduler(session=10), found)
    assert [victim.name for victim in replay.victims] == ["low"]


@pytest.mark.parametrize(("pods", "queues"), [(1, {"vision"}), (2, set[str]())])
def test_preemption_is_expected_only_where_it_frees_enough_resources(
    pods: int, queues: set[str]
) -> None:
    cluster = Scheduler(session=-1)
    assert started_replay(cluster, snapshot("language", pods)).victims == []
    assert cluster.preempting == queues
    assert cluster.count < 8


def test_no_preemption_is_expected_without_a_gang_to_evict() -> None:
    cluster = Scheduler(session=-1)
    found = snapshot("language")
    del found.gangs[0]  # `high` fits on gpu-0, but its queue has no share left
    started_replay(cluster, found)
    assert cluster.preempting == set()
    assert cluster.count < 8


def test_decisions_are_not_final_until_placed_pods_run() -> None:
    # Volcano preempts only running pods; once the placed pods run, they may be preempted.
    cluster = Scheduler(session=4, starts_after=40)
    started_replay(cluster, snapshot("vision"))
    assert cluster.count >= 44


def test_replay_waits_while_the_scheduler_is_binding_pods() -> None:
    phases = {f"gang-0-{number:05}": "Running" for number in range(3)}
    cluster = Scheduler(session=40, phases=phases, behind_until=41)
    replay = started_replay(cluster, snapshot("vision"))
    assert [victim.name for victim in replay.victims] == ["low"]


def test_decisions_are_not_final_until_the_scheduler_knows_all_changes() -> None:
    cluster = Scheduler(session=31, unaware_until=30)
    replay = started_replay(cluster, snapshot("language", pods=2))
    assert [victim.name for victim in replay.victims] == ["low"]
