"""Decisions about the trials of a sweep, as a pure function of their observed states.

The algorithm is asynchronous successive halving with pause and promotion. A trial runs until the
first rung that it may not pass, where it is paused. Once it is among the best 1/factor of the
trials that have reached this rung, it may pass the rung and is resumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Phase = Literal["asked", "waiting", "placed", "pausing", "paused", "succeeded", "failed"]
"""Phase of a trial.

In the `asked` phase, the sampler has suggested the trial, but its job has not been created yet. A
`waiting` trial is queued. A `placed` trial is scheduled, and its GPUs may already be allocated.
`asked` and the `ask` action are named after Optuna's ask-and-tell interface.
"""

FINISHED: Final = ("succeeded", "failed")


@dataclass(frozen=True)
class Trial:
    """Observed state of a trial.

    `values` maps completed epochs, or steps, to the objective; larger is better. `granted` is the
    number of rungs that the trial may pass.
    """

    run: str
    phase: Phase
    values: Mapping[int, float] = field(default_factory=dict)
    granted: int = 0

    def objective_at(self, rung: int) -> float | None:
        """Return the objective at a rung, or None if the trial has not reached it."""
        epoch = min((epoch for epoch in self.values if epoch >= rung), default=None)
        return None if epoch is None else self.values[epoch]

    def reached(self, rungs: Sequence[int]) -> int:
        """Return the number of rungs that the trial has reached."""
        return sum(self.objective_at(rung) is not None for rung in rungs)

    @property
    def is_active(self) -> bool:
        """True if the trial's job exists and is neither paused nor finished."""
        return self.phase in ("waiting", "placed", "pausing")

    def occupies_slot(self, rungs: Sequence[int]) -> bool:
        """Return whether one of the `parallel` slots is taken by the trial or reserved for it."""
        resuming = self.phase == "paused" and self.granted >= self.reached(rungs)
        return resuming or self.is_active or self.phase == "asked"


@dataclass(frozen=True)
class Bounds:
    """Limits of a sweep, from its settings."""

    parallel: int
    trials: int
    rungs: Sequence[int]
    factor: int


@dataclass(frozen=True)
class Budget:
    """Limits on the GPU time and on the time since the first trial.

    `reserve` is the GPU time that running trials may still use between the decision to pause them
    and the actual pause.
    """

    gpu_seconds: float
    seconds: float | None
    reserve: float

    def is_spent(self, gpu_seconds: float, seconds: float) -> bool:
        """Return whether the budget is used up, so that all trials must be paused permanently."""
        out_of_time = self.seconds is not None and seconds > self.seconds
        return out_of_time or gpu_seconds + self.reserve > self.gpu_seconds


@dataclass(frozen=True)
class Action:
    """A step of the controller.

    `ask` chooses the hyperparameters of a new trial. `create` starts a trial. `grant` lets a trial
    pass the rungs that it has reached. `pause` and `resume` act on the run of a trial.
    """

    kind: Literal["ask", "create", "grant", "pause", "resume"]
    run: str = ""
    granted: int = 0


def decide(
    bounds: Bounds, trials: Sequence[Trial], *, spent: bool = False, exhausted: bool = False
) -> list[Action]:
    """Return the actions in execution order.

    `spent` is True if the budget is used up, and `exhausted` is True if the sampler has no more
    trials to suggest. If the controller stops before it has executed all actions, the next call
    returns the remaining actions.
    """
    active = [trial for trial in trials if trial.phase in ("waiting", "placed")]
    if spent:
        return [Action("pause", trial.run) for trial in active]
    return [*_rung_actions(bounds, trials, active), *_start_actions(bounds, trials, exhausted)]


def is_complete(bounds: Bounds, trials: Sequence[Trial], *, exhausted: bool = False) -> bool:
    """Return whether nothing is left to do within the limits of the sweep."""
    running = any(trial.occupies_slot(bounds.rungs) for trial in trials)
    return not running and not decide(bounds, trials, exhausted=exhausted)


def is_over(trials: Sequence[Trial], *, complete: bool, spent: bool) -> bool:
    """Return whether the sweep is complete or all trials are permanently paused."""
    return complete or (spent and not any(trial.is_active for trial in trials))


def _rung_actions(
    bounds: Bounds, trials: Sequence[Trial], active: Sequence[Trial]
) -> Iterator[Action]:
    """Yield the actions for active trials that have reached a rung that they may not pass yet."""
    for trial in active:
        reached = trial.reached(bounds.rungs)
        if reached <= trial.granted:
            continue
        if trial.run in _best(bounds, trials, reached - 1):
            yield Action("grant", trial.run, reached)
        else:
            yield Action("pause", trial.run)


def _start_actions(bounds: Bounds, trials: Sequence[Trial], exhausted: bool) -> Iterator[Action]:
    """Yield the actions that start or resume trials.

    Trials that already have a slot come first, then promoted trials, then new trials.
    """
    slots = bounds.parallel - sum(trial.is_active for trial in trials)
    for trial in trials:
        if trial.is_active or not trial.occupies_slot(bounds.rungs):
            continue
        # If the user has reduced `parallel`, more than `parallel` trials may have a slot.
        if slots > 0:
            yield Action("create" if trial.phase == "asked" else "resume", trial.run)
        slots -= 1
    more = 0 if exhausted else bounds.trials - len(trials)
    promoted = list(_promotions(bounds, trials))
    running = any(trial.occupies_slot(bounds.rungs) for trial in trials)
    if not (promoted or more > 0 or running):
        promoted = _fallback(bounds, trials)
    for trial in promoted[: max(slots, 0)]:
        slots -= 1
        yield Action("grant", trial.run, trial.reached(bounds.rungs))
        yield Action("resume", trial.run)
    for _ in range(min(slots, more)):
        yield Action("ask")


def _promotions(bounds: Bounds, trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yield the paused trials that may be promoted, starting with the highest rung."""
    for number in reversed(range(len(bounds.rungs))):
        best = _best(bounds, trials, number)
        for trial in trials:
            waits = trial.phase == "paused" and trial.granted < trial.reached(bounds.rungs)
            if waits and trial.reached(bounds.rungs) == number + 1 and trial.run in best:
                yield trial


def _best(bounds: Bounds, trials: Sequence[Trial], number: int) -> set[str]:
    """Return the runs of the best 1/factor of the trials that have reached a rung."""
    rung = bounds.rungs[number]
    ranked = [
        (value, trial.run) for trial in trials if (value := trial.objective_at(rung)) is not None
    ]
    ranked.sort(key=lambda each: -each[0])
    return {run for _, run in ranked[: len(ranked) // bounds.factor]}


def _fallback(bounds: Bounds, trials: Sequence[Trial]) -> list[Trial]:
    """Return a list with only the best of the paused trials that have reached the highest rung.

    The list is empty if a trial has succeeded. Without this fallback, a sweep could end without a
    result, because no trial is promoted at a rung that fewer than `factor` trials have reached.
    """
    if any(trial.phase == "succeeded" for trial in trials):
        return []
    paused = [trial for trial in trials if trial.phase == "paused"]
    reached = max((trial.reached(bounds.rungs) for trial in paused), default=0)
    if not reached:
        return []
    highest = [trial for trial in paused if trial.reached(bounds.rungs) == reached]
    rung = bounds.rungs[reached - 1]
    return [max(highest, key=lambda trial: trial.objective_at(rung) or 0.0)]
