"""Combining several simulations of the same snapshot."""

import pytest

from devcluster.paths import CHECKOUT
from gitops.forecast.answer import Answer, Range, Victim, combine, render
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


def row_cells(found: Answer, name: str) -> list[str]:
    row = next(row for row in render(found).splitlines() if row.startswith(f"ml/{name} "))
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_single_simulation_is_returned_unchanged() -> None:
    found = combine([ONE])
    assert [(g.verdict, g.start_seconds) for g in found.gangs] == [
        (g.verdict, g.start_seconds) for g in ONE.gangs
    ]
    assert (found.varies, found.assumptions) == (False, [])
    assert row_cells(found, "late") == ["ml/late", "vision", "8", "starts later", "30m", "1h00m"]


def test_markup_in_reasons_is_not_interpreted() -> None:
    reason = "insufficient [nvidia.com/gpu] [/home] :smile:"
    assert reason in render(combine([answer(gang("a", "waits", None, None, reason=reason))]))


def test_identical_simulations_give_a_single_answer() -> None:
    assert render(combine([ONE, ONE, ONE])) == render(combine([ONE]))
    assert svg(combine([ONE, ONE])) == svg(combine([ONE]))


def test_most_frequent_verdict_comes_first_with_counts() -> None:
    found = combine([OTHER, ONE, ONE])
    gangs = {each.name: each for each in found.gangs}
    assert gangs["new"].verdict == "starts at once"
    assert gangs["new"].verdicts == {"starts at once": 2, "waits": 1}
    assert gangs["new"].outcome == "starts at once (2 of 3), waits (1 of 3)"
    assert gangs["new"].reason == "Unschedulable"
    assert gangs["late"].outcome == "starts later"
    assert gangs["late"].start_range == Range(least=1800, most=3600)
    # The start times come from the most typical simulation, not from the first one.
    assert [each.start_seconds for each in found.gangs] == [1800, 0, 0]
    assert [each.name for each in found.gangs] == ["late", "new", "a"]


def test_gang_with_varying_start_is_listed_with_its_range() -> None:
    found = combine([ONE, OTHER, ONE])
    assert row_cells(found, "a")[3:6] == [
        "runs (2 of 3), starts later (1 of 3)",
        "0m to 30m",
        "1h00m",
    ]
    assert found.assumptions[0] == "assumed"
    assert found.assumptions[1].startswith("1 of 3 gangs have the same verdict in all 3 sim")


def test_evictions_are_listed_with_counts_and_losses() -> None:
    found = combine([ONE, OTHER])
    first, second, third = found.victims
    assert (first.name, first.simulations, first.lost_hours) == ("late", 2, "2.0 to 4.0")
    assert (first.at_seconds, first.pods, first.gpu_hours) == (0, 2, 4)
    assert (second.name, second.simulations, second.at_seconds) == ("late", 1, 60)
    assert (third.name, third.simulations) == ("a", 1)
    assert "SIMULATIONS" in render(found)
    assert "ml/late" in render(found)
    assert "2 of 2" in render(found)


def test_unknown_loss_of_one_simulation_makes_the_combined_loss_unknown() -> None:
    found = combine([answer(victims=[victim("b", hours=hours)]) for hours in (1, None)])
    assert (found.victims[0].gpu_hours, found.victims[0].lost_hours) == (None, "unknown")


@pytest.mark.parametrize("answers", [[ONE, OTHER], [ONE]])
def test_chart_states_the_number_of_differing_simulations(answers: list[Answer]) -> None:
    picture = svg(combine(answers))
    assert ("most typical of 2 simulations" in picture) == (len(answers) == 2)


def test_example_on_the_page_matches_the_output() -> None:
    section = (CHECKOUT / "docs/simulation.md").read_text().partition("### Several outcomes")[2]
    shown = section.partition("```text\n")[2].partition("```")[0].splitlines()
    assert shown == render(combine([ONE, OTHER, ONE])).splitlines()[1 : len(shown) + 1]


def without_evictions() -> State:
    text = scheduler_configuration(SchedulerSettings(), hierarchical=False)
    return state().model_copy(update={"scheduler_configuration": text})


def test_evicting_scheduler_is_simulated_in_three_reproducible_orders() -> None:
    found = [order and order.random() for order in orders(state())]
    assert len(set(found)) == 3
    assert found == [order and order.random() for order in orders(state())]
    assert [*orders(without_evictions())] == [None]
    assert len([*orders(without_evictions(), 4)]) == 4
