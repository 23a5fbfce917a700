"""The Gantt chart of a simulation."""

from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

from gitops.forecast.answer import Answer, GangAnswer, Victim
from gitops.forecast.gantt import svg


def gang(
    name: str, verdict: str, start: float | None, end: float | None, **more: Any
) -> GangAnswer:
    values = {"namespace": "ml", "queue": "vision", "gpus": 8, "verdicts": {verdict: 1}, **more}
    return GangAnswer.model_validate(
        {**values, "name": name, "verdict": verdict, "start_seconds": start, "end_seconds": end}
    )


def answer(*gangs: GangAnswer, **more: Any) -> Answer:
    values: dict[str, Any] = {"ends": 1, "free": 0, "fragmented": 0, "gpus": 8, "age_seconds": 0}
    return Answer(
        **{"victims": [], "queues": [], "assumptions": [], **values, **more},
        taken=datetime(2026, 1, 1, tzinfo=UTC),
        horizon_seconds=3600,
        gangs=list(gangs),
    )


def bars(found: Answer) -> dict[str, list[tuple[str, float, float]]]:
    """Return class, start and length of each title's bars; the chart spans 7,200 seconds."""
    picture = ElementTree.fromstring(svg(found))  # noqa: S314  our own picture
    name = "{http://www.w3.org/2000/svg}"
    found_bars: dict[str, list[tuple[str, float, float]]] = {}
    for rect in picture.iter(f"{name}rect"):
        title = rect.find(f"{name}title")
        if title is not None and title.text:
            x, width = float(rect.get("x", 0)) - 260, float(rect.get("width", 0))
            seconds = (round(x / 720 * 7200), round(width / 720 * 7200))
            found_bars.setdefault(title.text.partition(":")[0], []).append(
                (rect.get("class", ""), *seconds)
            )
    return found_bars


def test_bars_show_when_gangs_run() -> None:
    found = bars(
        answer(
            gang("old", "runs", 0, 3600),
            gang("late", "starts later", 3600, 7200),
            gang("never", "waits", None, None),
            gang("endless", "starts at once", 0, None),
        )
    )
    assert found == {
        "ml/old": [("runs", 0, 3600)],
        "ml/late": [("new", 3600, 3600)],
        "ml/endless": [("new", 0, 7200)],
    }


def test_comparison_has_a_second_bar_for_existing_gangs() -> None:
    victim = Victim(namespace="ml", name="old", at_seconds=0, pods=1, gpu_hours=1)
    found = bars(
        answer(
            gang("old", "starts later", 3600, 7200, startWithoutSeconds=0, endWithoutSeconds=3600),
            gang("new", "starts at once", 0, 3600, added=True),
            compared=True,
            victims=[victim],
        )
    )
    assert found["ml/old without the change"] == [("without", 0, 3600)]
    assert found["ml/old"] == [("evicted", 3600, 3600)]
    assert "ml/new without the change" not in found


def test_names_are_escaped() -> None:
    picture = svg(answer(gang("<script>alert(1)</script>", "runs", 0, 60)))
    assert "<script>" not in picture
