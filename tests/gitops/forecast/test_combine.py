"""Several simulations of the same snapshot, combined."""

import pytest

from devcluster.paths import CHECKOUT
from gitops.forecast.answer import Answer, Range, Victim, render
from gitops.forecast.combine import combine
from gitops.forecast.gantt import svg
from gitops.forecast.simulate import orders
from gitops.forecast.state import State
from infra.settings.volcano import SchedulerSettings
from infra.volcano import scheduler_configuration
from tests.gitops.forecast.states import state
from tests.gitops.forecast.test_gantt import answer, gang


def victim(name: str, at: float = 0, pods: int = 2, hours: float | None = 4) -> Victim:
    return Victim(namespace="ml", name=name, at_seconds=at, pods=pods, gpu_hours=hours)


ONE = answer(
    gang("a", "runs", 0, 3600),
    gang("new", "starts at once", 0, 1800),
    gang("late", "starts later", 1800, 3600),
    victims=[victim("late"), victim("late", at=60)],
)
OTHER = answer(
    gang("late", "starts later", 3600, 5400),
    gang("new", "waits", None, None, reason="Unschedulable"),
    gang("a", "starts later", 1800, None),
    victims=[victim("a", at=30, hours=9), victim("late", at=60, pods=1, hours=2)],
    assumptions=["assumed"],
)


def line(found: Answer, name: str) -> list[str]:
    row = next(row for row in render(found).splitlines() if row.startswith(f"ml/{name} "))
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_a_single_simulation_is_its_own_answer() -> None:
    found = combine([ONE])
    assert [(g.verdict, g.start_seconds) for g in found.gangs] == [
        (g.verdict, g.start_seconds) for g in ONE.gangs
    ]
    assert (found.varies, found.assumptions) == (False, [])
    assert line(found, "late") == ["ml/late", "vision", "8", "starts later", "30m", "1h00m"]


def test_reasons_are_no_markup() -> None:
    reason = "insufficient [nvidia.com/gpu] [/home] :smile:"
    assert reason in render(combine([answer(gang("a", "waits", None, None, reason=reason))]))


def test_simulations_that_agree_are_one_answer() -> None:
    assert render(combine([ONE, ONE, ONE])) == render(combine([ONE]))
    assert svg(combine([ONE, ONE])) == svg(combine([ONE]))


def test_the_most_frequent_verdict_is_first_and_counts_follow() -> None:
    found = combine([OTHER, ONE, ONE])
    gangs = {each.name: each for each in found.gangs}
    assert gangs["new"].verdict == "starts at once"
    assert gangs["new"].verdicts == {"starts at once": 2, "waits": 1}
    assert gangs["new"].outcome == "starts at once (2 of 3), waits (1 of 3)"
    assert gangs["new"].reason == "Unschedulable"
    assert gangs["late"].outcome == "starts later"
    assert gangs["late"].start_range == Range(least=1800, most=3600)
    # The first simulation is not typical.
    assert [each.start_seconds for each in found.gangs] == [1800, 0, 0]
    assert [each.name for each in found.gangs] == ["late", "new", "a"]


def test_a_gang_that_one_simulation_moves_is_listed_with_its_range() -> None:
    found = combine([ONE, OTHER, ONE])
    assert line(found, "a")[3:6] == [
        "runs (2 of 3), starts later (1 of 3)",
        "0m to 30m",
        "1h00m",
    ]
    assert found.assumptions[0] == "assumed"
    assert found.assumptions[1].startswith("1 of 3 gangs have the same verdict in all 3 sim")


def test_evictions_have_counts_and_the_worst_loss() -> None:
    found = combine([ONE, OTHER])
    first, second, third = found.victims
    assert (first.name, first.simulations, first.lost_hours) == ("late", 2, "2.0 to 4.0")
    assert (first.at_seconds, first.pods, first.gpu_hours) == (0, 2, 4)
    assert (second.name, second.simulations, second.at_seconds) == ("late", 1, 60)
    assert (third.name, third.simulations) == ("a", 1)
    assert "SIMULATIONS" in render(found)
    assert "ml/late" in render(found)
    assert "2 of 2" in render(found)


def test_an_unknown_loss_is_the_worst() -> None:
    found = combine([answer(victims=[victim("b", hours=hours)]) for hours in (1, None)])
    assert (found.victims[0].gpu_hours, found.victims[0].lost_hours) == (None, "unknown")


@pytest.mark.parametrize("answers", [[ONE, OTHER], [ONE]])
def test_the_chart_names_the_number_of_simulations_that_differ(answers: list[Answer]) -> None:
    picture = svg(combine(answers))
    assert ("most typical of 2 simulations" in picture) == (len(answers) == 2)


def test_the_example_of_the_page_has_several_outcomes() -> None:
    section = (CHECKOUT / "docs/simulation.md").read_text().partition("### Several outcomes")[2]
    shown = section.partition("```text\n")[2].partition("```")[0].splitlines()
    assert shown == render(combine([ONE, OTHER, ONE])).splitlines()[1 : len(shown) + 1]


def without_evictions() -> State:
    text = scheduler_configuration(SchedulerSettings(), hierarchical=False)
    return state().model_copy(update={"scheduler_configuration": text})


def test_a_scheduler_that_evicts_is_simulated_three_times_in_the_same_orders() -> None:
    found = [order and order.random() for order in orders(state())]
    assert len(set(found)) == 3
    assert found == [order and order.random() for order in orders(state())]
    assert [*orders(without_evictions())] == [None]
    assert len([*orders(without_evictions(), 4)]) == 4
