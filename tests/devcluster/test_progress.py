"""Output of a step, on a terminal and in a log."""

import io

import pytest
from rich.console import Console

from devcluster import progress
from devcluster.progress import Reporter


def reporter(*, terminal: bool = False) -> Reporter:
    console = Console(file=io.StringIO(), force_terminal=terminal, highlight=False, width=200)
    return Reporter(console)


def printed(found: Reporter) -> str:
    assert isinstance(found.console.file, io.StringIO)
    return found.console.file.getvalue()


def test_line_starts_with_the_time_since_the_start_of_the_command() -> None:
    found = reporter()
    found.say("cluster: it is up already")
    assert printed(found) == "   0.0 s  cluster: it is up already\n"


@pytest.mark.parametrize("text", ["0/2 nodes [gpu-node-0]", "[/]", "[red]", '["a"]', "[/dim]"])
def test_brackets_are_printed_literally(text: str) -> None:
    found = reporter()
    found.say(text)
    with found.step(text) as step:
        step.update(text)
    assert printed(found).count(text) == 3


@pytest.mark.parametrize("text", ["[/]", "[bold]what[/bold]"])
def test_brackets_are_not_markup_on_a_terminal(text: str) -> None:
    found = reporter(terminal=True)
    with found.step(text) as step:
        step.update(text)
    assert text in printed(found)


def test_completed_step_shows_its_detail_and_duration() -> None:
    found = reporter()
    with found.step("tools") as step:
        step.detail = "in /tools"
    assert printed(found).endswith("tools: in /tools\n")
    assert 0 <= found.durations["tools"] < 1


def test_log_does_not_contain_every_progress_update() -> None:
    found = reporter()
    with found.step("cluster") as step:
        for number in range(100):
            step.update(f"step {number}")
    assert printed(found).splitlines() == ["   0.0 s  cluster: step 99"]


def test_each_line_of_a_long_step_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_INTERVAL", -1.0)
    found = reporter()
    with found.step("cluster") as step:
        step.update("etcd")
        step.update("kubelet")
    assert [line.split(": ")[1] for line in printed(found).splitlines()] == ["etcd", "kubelet"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_step_that_fails_is_not_reported_as_done(terminal: bool) -> None:
    found = reporter(terminal=terminal)
    with pytest.raises(RuntimeError), found.step("cluster"):
        raise RuntimeError
    assert found.durations == {}
    assert not printed(found).endswith("cluster\n")
