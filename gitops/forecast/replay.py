"""Replay of a snapshot: Volcano places the gangs, and the clock jumps to the next gang's end.

A session is one scheduling cycle of Volcano.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from gitops.forecast import objects
from gitops.forecast.answer import Victim
from gitops.forecast.capacity import Free, free, may_fit
from gitops.forecast.sandbox import Sandbox
from gitops.forecast.state import Gang, State
from gitops.runs.snapshot import accelerators, group_of, request

_STABLE_SESSIONS: Final = 2
"""Number of sessions without a change after which a decision is final, counted from when the
scheduler learns of the last change. The first of these sessions may have started before that."""
_STABLE_LISTS: Final = 10
"""Minimum time without a change after which a decision is final, as a multiple of the time needed
to list the pods' states. Counting sessions is not sufficient: on a busy machine, these sessions may
end before the API server has stored the scheduler's decisions."""
_MAX_SESSIONS_BEHIND: Final = 50
"""Maximum number of sessions to wait for the scheduler to bind pods, since binding can fail."""
_BOUND: Final = "Running"
"""Phase of a PodGroup after the scheduler has assigned nodes to its minimum number of pods."""
_POLL_SECONDS: Final = 0.02
_TIMEOUT_SECONDS: Final = 120.0
Placement = dict[str, str | None]
"""Maps pod names to node names, or to None for unscheduled pods."""
_MAX_EVICTION_ROUNDS: Final = 10
"""Maximum number of eviction rounds at one point in time, since gangs could evict each other
forever."""


@dataclass
class SimulatedGang:
    """A gang in the simulated cluster. Times are seconds since the snapshot."""

    name: str
    gang: Gang
    remaining: float | None
    """Time (s) from `start` to the expected end; None if it is unknown."""
    start: float | None = None
    started_before_snapshot: bool = False
    """True if the gang was already running in the snapshot."""
    end: float | None = None
    attempt: int = 0
    reason: str = ""
    pods: list[dict[str, Any]] = field(default_factory=list)
    """Scheduled pods."""

    @property
    def is_running(self) -> bool:
        """True if the gang has started and has not finished."""
        return self.start is not None and self.end is None

    @property
    def expected_end(self) -> float | None:
        """Time at which the gang ends if it keeps running; None if it is unknown."""
        return None if self.start is None or self.remaining is None else self.start + self.remaining

    @property
    def end_or_estimate(self) -> float | None:
        """Actual or expected end time; None if it is unknown."""
        return self.expected_end if self.end is None else self.end

    @property
    def gpus(self) -> int:
        """Number of GPUs and other accelerators that all pods request."""
        return sum(accelerators(s.requests).total() * s.count for s in self.gang.pods)

    @property
    def used(self) -> int:
        """Number of accelerators that the scheduled pods use."""
        return sum(accelerators(request(pod)).total() for pod in self.pods)


class Replay:
    """Simulation of one snapshot in one sandbox.

    Gangs of the same age are submitted in alphabetical order or, if `shuffle` is given, in random
    order.
    """

    def __init__(self, sandbox: Sandbox, state: State, shuffle: Random | None = None) -> None:
        state = state.with_priorities()
        self._sandbox = sandbox
        self.volcano = sandbox.volcano
        self.rejects_configuration = False
        self.state = state
        self.victims: list[Victim] = []
        self._created: dict[str, objects.Manifest] = {}
        """Manifests of the created pods, by name."""
        self._placement: Placement = {}
        """Placement of the existing pods."""
        self.unsettled = False
        self.evicts = state.evicts
        self._preempts = "preempt" in state.actions
        self.now = 0.0
        self.ends = 0
        # Volcano orders gangs of equal priority by creation time (in seconds), then by name.
        gangs = [gang for gang in state.gangs if gang.state != "suspended"]
        if shuffle is None:
            gangs.sort(key=lambda gang: gang.key)
        else:
            shuffle.shuffle(gangs)
        ordered = sorted(gangs, key=lambda gang: gang.created)
        self.runs = [
            SimulatedGang(f"gang-{sandbox.generation}-{n:05}", gang, gang.remaining(state.taken))
            for n, gang in enumerate(ordered)
        ]

    def start(self) -> None:
        """Load the snapshot with its pending gangs, and let the scheduler place them."""
        self._sandbox.load(self.state)
        with self._sandbox.scheduler_paused():
            self._submit(self.runs)
        self.rejects_configuration = self._sandbox.rejects_configuration
        for run in self.runs:
            if run.gang.state == "running":
                run.start, run.started_before_snapshot = 0.0, True
        self._decide()
        pods = self._sandbox.pods()
        for run in self.runs:
            if run.start is None:
                run.reason = _reason(run, pods)

    def advance(self) -> bool:
        """Jump to the next known end of a gang; return False if no end is known.

        If gangs are waiting, let the scheduler place them.
        """
        ending = [run for run in self.runs if run.is_running and run.expected_end is not None]
        if not ending:
            return False
        run = min(ending, key=lambda each: (each.expected_end, each.name))
        self.now = max(self.now, run.expected_end or 0.0)
        run.end = self.now
        self.ends += 1
        self._sandbox.end(run.name)
        gone = (objects.NAMESPACE, run.name)
        self._placement = {
            name: node
            for name, node in self._placement.items()
            if group_of(self._created[name]) != gone
        }
        run.pods = []
        if any(not other.is_running and other.end is None for other in self.runs):
            self._decide(self._placement)
        return True

    def used_by_queue(self) -> Counter[str]:
        """Return, for each queue, the number of accelerators that its placed pods use."""
        used: Counter[str] = Counter()
        for run in self.runs:
            used[run.gang.queue] += run.used
        return used

    def _submit(self, runs: list[SimulatedGang]) -> None:
        self._sandbox.create_groups([objects.group(run.name, run.gang) for run in runs])
        self._create([p for run in runs for p in objects.pods(run.name, run.gang, run.attempt)])

    def _create(self, pods: list[objects.Manifest]) -> None:
        self._created |= {pod["metadata"]["name"]: pod for pod in pods}
        self._sandbox.create_pods(pods)

    def _decide(self, known: Placement | None = None) -> None:
        for _ in range(_MAX_EVICTION_ROUNDS):
            self._settle(known)
            known = None
            if not self._restart_victims():
                break
        else:
            self.unsettled = True
        for run in self.runs:
            if run.start is None and len(run.pods) >= run.gang.minimum:
                run.start = self.now

    def _settle(self, last: Placement | None = None) -> None:
        """Wait until the scheduler stops admitting and placing gangs.

        `last` is the last known placement.
        """
        started = changed = time.monotonic()
        marker = self._sandbox.mark()
        last_phases: dict[str, str] | None = None
        queues: set[str] | None = None
        while time.monotonic() < started + _TIMEOUT_SECONDS:
            sessions, listed = self._wait_for_session(), time.monotonic()
            states = self._sandbox.pod_states()
            listing_seconds = time.monotonic() - listed
            placement = {name: pod.node for name, pod in states.items()}
            phases = self._sandbox.phases()
            if (
                placement != last
                or (last_phases is not None and phases != last_phases)
                or any(pod.is_transient for pod in states.values())
            ):
                last, last_phases, queues = placement, phases, None
                marker, changed = self._sandbox.mark(), time.monotonic()
                continue
            last_phases = phases
            since = self._sandbox.known_since(marker)
            if (
                since is None
                or sessions < since + _STABLE_SESSIONS
                or listed < changed + _STABLE_LISTS * listing_seconds
            ):
                continue
            if queues is None:
                self._assign_pods(placement)
                if sessions < since + _MAX_SESSIONS_BEHIND and self._is_scheduler_behind(phases):
                    continue
                queues = self._preempting_queues()
            if not self._sandbox.untried_preemptions(queues, since):
                break
        else:
            self._assign_pods(placement)
            self.unsettled = True

    def _wait_for_session(self) -> int:
        """Wait for the next session or a timeout, and return the number of completed sessions."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        before = self._sandbox.sessions()
        while (now := self._sandbox.sessions()) == before and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return now

    def _assign_pods(self, placement: Placement) -> None:
        # The manifests are known, and listing thousands of pods takes longer than a session.
        self._placement, placed = placement, defaultdict(list)
        for name, node in placement.items():
            pod = self._created[name]
            if node is not None:
                placed[group_of(pod)].append({**pod, "spec": {**pod["spec"], "nodeName": node}})
        for run in self.runs:
            run.pods = placed[objects.NAMESPACE, run.name]

    def _is_scheduler_behind(self, phases: Mapping[str, str]) -> bool:
        """Return whether the scheduler is still binding a gang's pods.

        At the end of each session, Volcano stores the phases of the PodGroups. It binds pods later,
        which on a busy machine can take longer than two sessions.
        """
        return any(
            phases.get(run.name) == _BOUND
            for run in self.runs
            if run.end is None and len(run.pods) < run.gang.minimum
        )

    def _preempting_queues(self) -> set[str]:
        """Return the queues in which a gang may preempt other gangs.

        Each of these queues contains a waiting gang that may preempt other gangs and that would fit
        if all of them were evicted.
        """
        if not self._preempts:
            return set()
        present = [run for run in self.runs if run.end is None]
        left: dict[tuple[str, int], Free] = {}
        queues: set[str] = set()
        for run in present:
            missing = run.gang.minimum - len(run.pods)
            if missing <= 0 or run.gang.queue in queues:
                continue
            key = run.gang.queue, run.gang.priority
            if key not in left:
                stays = (
                    pod
                    for other in present
                    if not _may_preempt(run.gang, other.gang)
                    for pod in other.pods
                )
                # A gang that fits without evictions waits for another reason, such as the share of
                # its queue.
                evicts = any(other.pods and _may_preempt(run.gang, other.gang) for other in present)
                left[key] = free(self.state.nodes, stays) if evicts else {}
            if may_fit(left[key], run.gang.pods, missing):
                queues.add(run.gang.queue)
        return queues

    def _restart_victims(self) -> bool:
        """Re-create evicted pods, as controllers do, and return whether pods were evicted.

        A gang below its minimum restarts as a whole.
        """
        present = Counter(group_of(self._created[name]) for name in self._placement)
        stopped: list[str] = []
        again: list[objects.Manifest] = []
        for run in self.runs:
            left = present[objects.NAMESPACE, run.name]
            missing = run.gang.size - left
            if run.end is not None or missing <= 0:
                continue
            self._record_victim(run, missing)
            run.attempt += 1
            pods = objects.pods(run.name, run.gang, run.attempt)
            if len(run.pods) < run.gang.minimum:
                if left:
                    stopped.append(run.name)
                restarted_gang = run.gang.model_copy(update={"started": None})
                run.remaining = restarted_gang.remaining(self.state.taken)
                run.start = None
            else:
                pods = pods[-missing:]
            again += pods
        if stopped:
            self._sandbox.end(*stopped, pods_only=True)
        self._create(again)
        return bool(again)

    def _unsaved_seconds(self, run: SimulatedGang, start: float) -> float | None:
        """Return the work (s) that a running gang would lose on eviction; None if it is unknown.

        For a gang that started in the simulation, this is the maximum: the time since its start, or
        the interval between its checkpoints if that is shorter.
        """
        if run.started_before_snapshot:
            return run.gang.unsaved_seconds(self.state.taken, self.now)
        interval = run.gang.saves_every_seconds
        return self.now - start if interval is None else min(self.now - start, interval)

    def _record_victim(self, run: SimulatedGang, missing: int) -> None:
        gang = run.gang
        restarts = len(run.pods) < gang.minimum
        pods = gang.size if restarts else missing
        if run.start is not None:
            lost = self._unsaved_seconds(run, run.start)
            hours = None if lost is None else lost / 3600 * run.gpus * pods / gang.size
            self.victims.append(
                Victim(
                    namespace=gang.namespace,
                    name=gang.name,
                    at_seconds=self.now,
                    pods=pods,
                    gpu_hours=hours,
                )
            )
        run.started_before_snapshot = run.started_before_snapshot and not restarts


def _may_preempt(preemptor: Gang, victim: Gang) -> bool:
    """Return whether a gang may preempt another one, which must be in the same queue."""
    return (
        victim.queue == preemptor.queue
        and victim.priority < preemptor.priority
        and victim.preemptable is not False
    )


def _reason(run: SimulatedGang, pods: list[dict[str, Any]]) -> str:
    """Return the most frequent scheduling message of a gang's pods, or an empty string."""
    messages: Counter[str] = Counter()
    for pod in pods:
        if group_of(pod) == (objects.NAMESPACE, run.name):
            for condition in pod.get("status", {}).get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    messages[condition.get("message", "")] += 1
    useful = [text for text in messages if not text.startswith("pod group is not")]
    return max(useful or messages, key=lambda text: messages[text], default="")
