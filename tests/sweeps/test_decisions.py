"""Sweep decisions, including random histories in which the controller dies between actions."""

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sweeps.decisions import Action, Bounds, Budget, Phase, Trial, decide, is_complete, is_over
from tests.infra.sweeps import stack_settings, sweep

HALVING = Bounds(parallel=2, trials=9, rungs=[1, 3], factor=3)


def trial(run: str, phase: Phase, *values: float, granted: int = 0) -> Trial:
    return Trial(run, phase, {epoch + 1: value for epoch, value in enumerate(values)}, granted)


def kinds(actions: list[Action]) -> list[tuple[str, str]]:
    return [(each.kind, each.run) for each in actions]


def test_empty_sweep_requests_as_many_trials_as_parallel_allows() -> None:
    assert kinds(decide(HALVING, [])) == [("ask", ""), ("ask", "")]


def test_requested_trial_is_created_before_the_next_one_is_requested() -> None:
    actions = decide(HALVING, [trial("a", "asked")])
    assert kinds(actions) == [("create", "a"), ("ask", "")]


def test_a_trial_that_is_not_among_the_best_at_a_rung_is_paused() -> None:
    trials = [trial("a", "placed", 0.5), trial("b", "paused", 0.9)]
    assert ("pause", "a") in kinds(decide(HALVING, trials))


def test_a_trial_among_the_best_at_a_rung_continues_without_a_pause() -> None:
    others = [trial(name, "paused", 0.1) for name in "bc"]
    actions = decide(HALVING, [trial("a", "placed", 0.5), *others])
    assert Action("grant", "a", 1) in actions
    assert ("pause", "a") not in kinds(actions)


def test_a_paused_trial_is_promoted_before_a_new_one_starts() -> None:
    trials = [trial("a", "paused", 0.5), trial("b", "paused", 0.1), trial("c", "paused", 0.2)]
    actions = kinds(decide(HALVING, trials))
    assert actions == [("grant", "a"), ("resume", "a"), ("ask", "")]


def test_resuming_trial_counts_as_running_until_its_phase_changes() -> None:
    trials = [trial("a", "paused", 0.5, granted=1), trial("b", "placed")]
    assert kinds(decide(HALVING, trials)) == [("resume", "a")]


def test_fewer_trials_resume_after_parallel_was_reduced() -> None:
    bounds = Bounds(parallel=2, trials=9, rungs=[1, 3], factor=3)
    paused = [trial(run, "paused", 0.5, granted=1) for run in "abc"]
    assert kinds(decide(bounds, paused)) == [("resume", "a"), ("resume", "b")]
    running = [trial("d", "placed"), trial("e", "pausing", 0.5)]
    asked = trial("f", "asked")
    assert kinds(decide(bounds, [paused[0], asked, *running])) == []
    assert not is_complete(bounds, paused)


def test_a_promoted_trial_runs_to_the_next_rung_even_if_others_overtake_it() -> None:
    overtaken = trial("a", "placed", 0.1, 0.2, granted=1)
    others = [trial(name, "paused", 0.9) for name in "bcd"]
    assert "a" not in {each.run for each in decide(HALVING, [overtaken, *others])}


def test_spent_budget_pauses_running_trials_and_starts_no_others() -> None:
    trials = [trial("a", "placed"), trial("b", "asked"), trial("c", "paused", 0.5)]
    assert kinds(decide(HALVING, trials, spent=True)) == [("pause", "a")]


def test_best_trial_is_finished_if_there_are_too_few_trials_for_a_promotion() -> None:
    bounds = Bounds(parallel=2, trials=2, rungs=[1, 3], factor=3)
    trials = [trial("a", "paused", 0.5), trial("b", "paused", 0.7)]
    assert kinds(decide(bounds, trials)) == [("grant", "b"), ("resume", "b")]


def test_every_trial_is_trained_to_the_end_if_there_are_no_rungs() -> None:
    bounds = Bounds(parallel=1, trials=2, rungs=[], factor=1)
    assert kinds(decide(bounds, [trial("a", "placed", 0.1, 0.2)])) == []
    assert kinds(decide(bounds, [trial("a", "succeeded", 0.1)])) == [("ask", "")]


def test_a_sweep_is_over_only_when_no_trial_can_finish() -> None:
    for phase in ("waiting", "placed", "pausing"):
        trials = [trial("a", phase), trial("b", "succeeded", 0.5)]
        assert not is_over(trials, complete=False, spent=True)
    trials = [trial("a", "paused"), trial("b", "succeeded", 0.5), trial("c", "asked")]
    assert is_over(trials, complete=False, spent=True)
    assert not is_over(trials, complete=False, spent=False)
    assert is_over(trials, complete=True, spent=False)


@dataclass
class World:
    """A cluster and the records of a controller whose process may die after any action."""

    bounds: Bounds
    rng: random.Random
    epochs: int
    asked: list[str] = field(default_factory=list)
    granted: dict[str, int] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    creations: list[str] = field(default_factory=list)

    def trials(self) -> list[Trial]:
        return [
            Trial(
                run,
                self.phases.get(run, "asked"),
                {epoch: self.value(run, epoch) for epoch in range(1, self.done.get(run, 0) + 1)},
                self.granted.get(run, 0),
            )
            for run in self.asked
        ]

    def value(self, run: str, epoch: int) -> float:
        return random.Random(f"{run}/{epoch}").random()  # noqa: S311

    def act(self, action: Action) -> None:
        match action.kind:
            case "ask":
                self.asked.append(f"t{len(self.asked)}")
            case "grant":
                self.granted[action.run] = action.granted
            case "create":
                if action.run not in self.phases:
                    self.creations.append(action.run)
                    self.phases[action.run] = "waiting"
                    self.done[action.run] = 0
            case _:
                # The object names ensure that each job has at most one command at a time.
                self.commands.setdefault(action.run, action.kind)

    def advance(self) -> None:
        """Simulate progress in the cluster."""
        for run, kind in list(self.commands.items()):
            if self.rng.random() < 0.5:
                del self.commands[run]
                if kind == "pause" and self.phases[run] in ("waiting", "placed"):
                    self.phases[run] = "pausing"
                elif kind == "resume" and self.phases[run] == "paused":
                    self.phases[run] = "waiting"
        for run, phase in list(self.phases.items()):
            if self.rng.random() < 0.3:
                continue
            if phase == "waiting":
                self.phases[run] = "placed"
            elif phase == "pausing":
                self.phases[run] = "paused"
            elif phase == "placed":
                if self.rng.random() < 0.05:
                    self.phases[run] = self.rng.choice(["failed", "waiting"])
                    continue
                self.done[run] += 1
                if self.done[run] == self.epochs:
                    self.phases[run] = "succeeded"

    def control(self, *, die: bool, spent: bool = False) -> None:
        """Decide and act; if `die` is true, the process ends after some of the actions."""
        actions = decide(self.bounds, self.trials(), spent=spent)
        executed = self.rng.randint(0, len(actions)) if die else len(actions)
        for action in actions[:executed]:
            self.act(action)
            self.check()

    def check(self) -> None:
        running = [run for run, phase in self.phases.items() if phase in HOLDING_GPUS]
        assert len(running) <= self.bounds.parallel
        assert len(self.asked) <= self.bounds.trials
        assert len(set(self.creations)) == len(self.creations)


HOLDING_GPUS = ("waiting", "placed", "pausing")
bounds = st.builds(
    Bounds,
    parallel=st.integers(1, 5),
    trials=st.integers(1, 20),
    rungs=st.sampled_from([[], [1], [1, 3], [2, 4, 8]]),
    factor=st.integers(2, 4),
)


@settings(max_examples=40)
@given(bounds, st.integers(0, 2**32), st.floats(0, 0.9))
def test_controller_that_dies_repeatedly_neither_loses_nor_repeats_trials(
    bounds: Bounds, seed: int, death_rate: float
) -> None:
    world = World(bounds, random.Random(seed), epochs=9)  # noqa: S311
    for _ in range(3000):
        world.control(die=world.rng.random() < death_rate)
        world.advance()
        world.check()
        if is_complete(bounds, world.trials()):
            break
    assert is_complete(bounds, world.trials())
    assert len(world.creations) == bounds.trials
    ended_trials = [run for run, phase in world.phases.items() if phase != "paused"]
    assert ended_trials, "no trial has ended"
    if not bounds.rungs:
        assert len(ended_trials) == bounds.trials


@settings(max_examples=40)
@given(bounds, st.integers(0, 2**32), st.integers(0, 60))
def test_no_trial_runs_once_the_budget_is_spent(bounds: Bounds, seed: int, steps: int) -> None:
    world = World(bounds, random.Random(seed), epochs=9)  # noqa: S311
    for _ in range(steps):
        world.control(die=world.rng.random() < 0.3)
        world.advance()
    created = len(world.creations)
    for _ in range(100):
        world.control(die=world.rng.random() < 0.3, spent=True)
        world.advance()
    assert not [run for run, phase in world.phases.items() if phase in HOLDING_GPUS]
    assert len(world.creations) == created


@dataclass
class PromptCluster(World):
    """A cluster that frees the GPUs of a paused trial within `grace` ticks."""

    grace: int = 1
    pausing: dict[str, int] = field(default_factory=dict)
    gpu_ticks: int = 0
    """GPU time used by all trials, with one GPU each."""

    def advance(self) -> None:
        self.gpu_ticks += sum(phase in ("placed", "pausing") for phase in self.phases.values())
        for run, kind in self.commands.items():
            if kind == "pause" and self.phases[run] in ("waiting", "placed"):
                self.phases[run], self.pausing[run] = "pausing", self.rng.randint(1, self.grace)
            elif kind == "resume" and self.phases[run] == "paused":
                self.phases[run] = "waiting"
        self.commands.clear()
        for run, phase in self.phases.items():
            if phase == "waiting" and self.rng.random() < 0.7:
                self.phases[run] = "placed"
            elif phase == "pausing":
                self.pausing[run] -= 1
                if not self.pausing[run]:
                    self.phases[run] = "paused"
            elif phase == "placed" and self.rng.random() < 0.7:
                self.done[run] += 1
                if self.done[run] == self.epochs:
                    self.phases[run] = "succeeded"


@settings(max_examples=60)
@given(
    bounds,
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.floats(0.01, 20),
    st.floats(1.5, 40),
    st.none() | st.floats(1.5, 40),
)
def test_sweep_never_exceeds_its_money_budget_in_random_histories(
    bounds: Bounds, seed: int, grace: int, price: float, affordable: float, hours: float | None
) -> None:
    reserve = bounds.parallel * (1 + grace)
    limits = {"money": affordable * reserve * price}
    if hours is not None:
        limits["gpu_hours"] = hours * reserve
    # A tick is one hour, and each trial has one GPU.
    allowed = sweep(stack_settings(budget=limits), price).gpu_hours
    budget = Budget(gpu_seconds=allowed, seconds=None, reserve=reserve)
    world = PromptCluster(bounds, random.Random(seed), epochs=9, grace=grace)  # noqa: S311
    spent = over = False
    for _ in range(3000):
        # A spent budget stays spent.
        assert budget.is_spent(world.gpu_ticks, 0) >= spent
        spent = budget.is_spent(world.gpu_ticks, 0)
        over = is_over(world.trials(), complete=is_complete(bounds, world.trials()), spent=spent)
        if over:
            break
        world.control(die=False, spent=spent)
        world.advance()
    assert over
    assert world.gpu_ticks * price <= limits["money"] * (1 + 1e-9)
    assert hours is None or world.gpu_ticks <= limits["gpu_hours"]
    assert not [run for run, phase in world.phases.items() if phase in HOLDING_GPUS]
    if spent:
        assert world.gpu_ticks > allowed - reserve
