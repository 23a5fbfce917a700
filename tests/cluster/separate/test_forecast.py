"""Simulations with real Volcano in separate simulated clusters (docs/simulation.md)."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from devcluster.paths import CHECKOUT
from gitops.__main__ import main
from gitops.engine import Stack
from gitops.forecast.answer import Answer, render
from gitops.forecast.replay import Replay
from gitops.forecast.sandbox import sandbox
from gitops.forecast.state import Queue, dump
from gitops.preview import events
from gitops.preview.simulation import with_simulation
from tests.gitops import plans
from tests.gitops.forecast.states import JOB, gang, state


def simulated(folder: Path, capsys: pytest.CaptureFixture[str], *changes: str) -> Answer:
    file = folder / "cluster.yaml"
    file.write_text(dump(state(), as_yaml=True))
    (folder / "job.yaml").write_text(JOB)
    arguments: Sequence[str] = ["simulate", "--snapshot", str(file), "--json", *changes]
    assert main(arguments) == 0
    return Answer.model_validate_json(capsys.readouterr().out)


def test_simulated_gangs_start_in_gaps_and_when_others_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = simulated(tmp_path, capsys, "--repeat", "1")
    gangs = {gang.name: gang for gang in answer.gangs}
    assert {name: gang.verdict for name, gang in gangs.items()} == {
        "a": "runs",
        "b": "runs",
        "large": "starts later",
        "small": "starts at once",
    }
    # `a` ends after an hour.
    assert (gangs["large"].start_seconds, gangs["large"].end_seconds) == (3600, 7200)
    assert "Unschedulable" in gangs["large"].reason
    assert answer.victims == []
    assert (answer.gpus, answer.free) == (24, 0)
    (vision,) = (queue for queue in answer.queues if queue.queue == "vision")
    assert (vision.before, vision.after) == (22, 24)
    assert any("old" in text for text in answer.assumptions)


def test_simulated_urgent_job_preempts_a_gang_that_restarts_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ("--add", str(tmp_path / "job.yaml"), "--remove", "large")
    picture = tmp_path / "queue.svg"
    answer = simulated(tmp_path, capsys, *changes, "--compare", "--svg", str(picture))
    gangs = {gang.name: gang for gang in answer.gangs}
    # All three simulations agree.
    assert gangs["urgent"].verdicts == {"starts at once": 3}
    (victim,) = answer.victims
    assert (answer.simulations, victim.simulations, answer.varies) == (3, 3, False)
    assert (victim.name, victim.pods, victim.at_seconds) == ("a", 2, 0)
    # Sixteen GPUs lose a quarter of an hour: the time since the last checkpoint.
    assert victim.gpu_hours == 4
    assert gangs["a"].verdict == "starts later"
    assert gangs["a"].start_seconds == 1800
    assert gangs["a"].start_without_seconds == 0
    page = (CHECKOUT / "docs" / "simulation.md").read_text()
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    # The first line and one of the assumptions contain the age of the snapshot.
    assert shown[1:] == [line for line in render(answer).splitlines()[1:] if " h old" not in line]
    assert picture.read_text() == (CHECKOUT / "docs" / "simulation.svg").read_text()


def test_simulated_gangs_in_all_queues_preempt() -> None:
    names = ["language", "speech", "vision"]
    gangs = []
    for number, name in enumerate(names):
        low = gang(f"low-{name}", 1, 8, f"gpu-{number}", hour=7)
        high = gang(f"high-{name}", 1, 8, hour=8)
        gangs.append(low.model_copy(update={"queue": name}))
        gangs.append(high.model_copy(update={"queue": name, "priority_class": "urgent"}))
    queues = [Queue(name=name, spec={"weight": 1}) for name in [*names, "root"]]
    found = state().model_copy(update={"gangs": gangs, "queues": queues})
    with sandbox(found.scheduler_configuration) as cluster:
        replay = Replay(cluster, found)
        replay.start()
        # No queue has been tried in a session that is still in the future.
        assert cluster.untried_preemptions(names, cluster.sessions() + 1000) == {*names}
    assert {victim.name for victim in replay.victims} == {f"low-{name}" for name in names}
    assert not replay.unsettled


def test_forecast_compares_the_plan_with_the_unchanged_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(dump(state(), as_yaml=True))
    urgent = plans.step("create", new=yaml.safe_load(JOB))
    plan = events.plan([urgent, plans.policy_summary(), plans.summary()])
    done, answer = with_simulation(plan, str(file), Stack("prod"), None, repeat=1)
    assert answer is not None
    gangs = {gang.name: gang for gang in answer.gangs}
    assert (gangs["urgent"].verdict, gangs["urgent"].added) == ("starts at once", True)
    # Without the plan, `a` continues and `large` starts when `a` ends.
    assert (gangs["a"].start_seconds, gangs["a"].start_without_seconds) == (1800, 0)
    assert gangs["large"].start_without_seconds == 3600
    assert [finding.rule for finding in done.findings] == ["plan-preempts-nothing-of"]


def test_simulated_gang_starts_immediately_with_added_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = simulated(tmp_path, capsys, "--nodes", "+2", "--horizon", "0", "--repeat", "1")
    gangs = {gang.name: gang for gang in answer.gangs}
    assert gangs["large"].verdict == "starts at once"
    assert (answer.gpus, answer.ends) == (40, 0)
