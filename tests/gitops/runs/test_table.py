"""The table of runs, and the same data as JSON."""

import dataclasses
import io
import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from rich.console import Console

from gitops.runs.progress import Progress
from gitops.runs.status import RunStatus
from gitops.runs.table import as_svg, render, terminal
from kube.kinds.record import State

NOW = datetime(2026, 1, 1, 10, tzinfo=UTC)
RUN = RunStatus(
    namespace="ml",
    name="digits-1a2b3c4d",
    kind="Volcano Job",
    queue="vision",
    state=State.RUNNING,
    pods=2,
    wanted=2,
    gpus=Counter({"nvidia.com/gpu": 16}),
    restarts=1,
    created=datetime(2026, 1, 1, 8, 30, tzinfo=UTC),
    progress=Progress(3, 10, 400, 0.125, 0.9, 200),
    gpu_hours=Decimal("24"),
    cost=Decimal("57.6"),
)


def rendered(*runs: RunStatus, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(runs, "EUR", NOW))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_run_is_shown_on_one_line_with_all_columns() -> None:
    heading, line = rendered(RUN).splitlines()
    assert heading.split() == [
        *("RUN", "QUEUE", "STATE", "PODS", "GPUS", "EPOCHS", "LOSS", "LEFT", "AGE"),
        *("GPU", "H", "EUR"),
    ]
    for part in ("digits-1a2b3c4d", "running, 1 restart", "2/2", "16", "3/10", "0.125", "3m20s"):
        assert part in line
    assert line.split()[-3:] == ["1h30m", "24.00", "57.60"]


def test_empty_columns_are_omitted() -> None:
    plain = dataclasses.replace(RUN, progress=None, cost=None)
    assert rendered(plain).splitlines()[0].split() == [
        *("RUN", "QUEUE", "STATE", "PODS", "GPUS", "AGE", "GPU", "H")
    ]


def test_narrow_terminal_omits_columns_instead_of_truncating_cells() -> None:
    ended = dataclasses.replace(
        RUN, name="language-model-1a2b3c4d", state=State.SUCCEEDED, restarts=0
    )
    lines = rendered(RUN, ended, width=80).splitlines()
    assert lines[0].split() == ["RUN", "QUEUE", "STATE", "PODS", "EPOCHS", "LEFT"]
    assert lines[1].split()[:4] == ["digits-1a2b3c4d", "vision", "running,", "1"]
    assert "succeeded  " in lines[2]
    assert "…" not in "".join(lines)


def test_all_columns_are_printed_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    terminal().print(render([RUN], "EUR", NOW))
    assert capsys.readouterr().out.splitlines()[0].endswith("GPU H    EUR")


def test_long_name_is_wrapped() -> None:
    named = dataclasses.replace(RUN, name="a" * 70)
    text = rendered(named, width=60)
    assert "…" not in text
    assert sum(line.partition(" ")[0].count("a") for line in text.splitlines()) == 70
    assert "running, 1 restart" in text


def test_namespace_is_shown_only_if_there_are_several() -> None:
    other = dataclasses.replace(RUN, namespace="other")
    assert "ml/digits" not in rendered(RUN)
    assert "other/digits-1a2b3c4d" in rendered(RUN, other)


def test_reasons_for_waiting_and_failed_runs_follow_the_table() -> None:
    waiting = dataclasses.replace(
        RUN,
        state=State.WAITING,
        position=2,
        waiting_reason="ml/digits-1a2b3c4d in queue vision: 0 of 2 pods are scheduled",
        reasons=("queue [b]vision[/b] is full",),
    )
    text = rendered(waiting)
    assert "waiting, position 2" in text
    assert "in queue vision: 0 of 2 pods are scheduled\n  queue [b]vision[/b] is full" in text
    failed = dataclasses.replace(RUN, state=State.FAILED, last_log_lines=("no data",))
    assert "ml/digits-1a2b3c4d has failed:\n  no data" in rendered(failed)


def test_empty_table_is_printed_as_no_runs() -> None:
    assert rendered() == "no runs\n"
    assert str(render([], "USD", NOW, "vision")) == "no runs in namespace vision"


@pytest.mark.parametrize("seconds", [0, 59, 3599, 86_399, 10**7])
def test_durations_do_not_wrap_the_line(seconds: int) -> None:
    run = dataclasses.replace(RUN, progress=Progress(3, 10, 400, 0.1, 0.9, seconds))
    assert len(rendered(run).splitlines()) == 2


def test_json_output_has_null_for_unknown_values() -> None:
    document = json.loads(json.dumps(dataclasses.replace(RUN, progress=None, cost=None).as_json()))
    assert document["pods"] == {"placed": 2, "wanted": 2}
    assert document["gpus"] == {"nvidia.com/gpu": 16}
    assert document["cost"] is None
    assert set(document["progress"].values()) == {None}


def test_failed_run_shows_the_command_for_its_failure_log() -> None:
    command = (
        "kubectl exec -n ml deploy/failure-recorder -- python3 -m recorder show digits-1a2b3c4d"
    )
    failed = dataclasses.replace(
        RUN, state=State.FAILED, last_log_lines=("no memory",), failure_log_command=command
    )
    other = dataclasses.replace(
        RUN, name="gang-2", failure_log_command=command.replace("digits-1a2b3c4d", "gang-2")
    )
    assert rendered(failed, other).splitlines()[3:] == [
        "",
        "ml/digits-1a2b3c4d has failed:",
        "  no memory",
        "",
        "to print the last log lines and events of failed pods of digits-1a2b3c4d, gang-2:",
        f"  {command.replace('digits-1a2b3c4d', 'RUN')}",
    ]
    named_like_a_word = dataclasses.replace(
        other, name="exec", failure_log_command=command.replace("digits-1a2b3c4d", "exec")
    )
    assert rendered(named_like_a_word).endswith(command.replace("digits-1a2b3c4d", "RUN") + "\n")
    assert failed.as_json()["failureLogCommand"] == command
    assert RUN.as_json()["failureLogCommand"] is None


def test_svg_contains_the_text_and_loads_no_fonts() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(render([RUN], "EUR", NOW))
    picture = as_svg(console, "python -m gitops status")
    assert "digits-1a2b3c4d" in picture
    assert "python" in picture
    assert "font-face" not in picture
