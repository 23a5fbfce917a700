"""Output of small programs to a real terminal or to a pipe."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workload import report
from workload.progress import Failed, parse

PROGRAM = """
import sys, time
{}
from workload import report

class Loss:
    reads = 0
    def __float__(self):
        self.reads += 1
        return 0.123456

loss = Loss()
report.emit("start", model="digits-net", note="[not markup]")
with report.Bar(1000, 400, shown={}) as bar:
    for step in range(1, 7):
        time.sleep(0.1)
        bar.advance(400 + 100 * step, 40 + step, loss)
    report.emit("epoch", epoch=1, loss=0.123456789)
report.conclude("error", message="the disk is full", reads=loss.reads)
"""
WITHOUT_RICH = "import importlib.util; importlib.util.find_spec = lambda name: None"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def output_on_terminal(setup: str = "", shown: bool = True) -> str:
    """Return the program's output on a terminal, including escape sequences."""
    reader, writer = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    program = [sys.executable, "-c", PROGRAM.format(setup, shown)]
    with subprocess.Popen(program, stdout=writer, env=environment) as process:
        os.close(writer)
        output = b""
        while True:
            try:
                output += os.read(reader, 65536)
            except OSError:  # Linux raises EIO once the program has exited
                break
    os.close(reader)
    assert process.returncode == 0
    return output.decode()


def test_terminal_shows_readable_lines_and_a_progress_bar_instead_of_json() -> None:
    raw = output_on_terminal()
    text = ESCAPES.sub("", raw)
    assert "{" not in text
    assert re.search(r"start +model digits-net note \[not markup\]", text)
    assert re.search(r"epoch +epoch 1 loss 0\.123457\s", text)
    assert re.search(r"step 4\d +loss 0\.1235", text)
    assert re.search(r"\d+ samples/s", text)
    assert re.search(r"0:00:\d\d", text)
    assert re.search(r"error +message the disk is full reads [1-3]\r\n$", text)
    cursor_hidden, cursor_shown = raw.rfind("\x1b[?25l"), raw.rfind("\x1b[?25h")
    assert 0 < cursor_hidden < cursor_shown


def test_ranks_above_0_show_no_progress_bar() -> None:
    text = ESCAPES.sub("", output_on_terminal(shown=False))
    assert "samples/s" not in text
    assert "reads 0" in text


def test_pipe_receives_json_without_a_progress_bar() -> None:
    program = [sys.executable, "-c", PROGRAM.format("", True)]
    result = subprocess.run(program, check=True, capture_output=True, text=True)
    output = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["event"] for line in output] == ["start", "epoch", "error"]
    assert output[-1]["reads"] == 0
    assert result.stderr == ""


def test_terminal_receives_json_if_rich_is_not_installed() -> None:
    output = [json.loads(line) for line in output_on_terminal(WITHOUT_RICH).splitlines()]
    assert [line["event"] for line in output] == ["start", "epoch", "error"]


@pytest.mark.parametrize("character", ["a", "ä", '"', "😀"])
def test_long_error_is_truncated_to_a_valid_event_in_the_termination_message(
    character: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    monkeypatch.setattr(report, "TERMINATION_LOG", log)
    report.fail("missing: " + character * 9000, 64, rank=3)
    assert 0.9 * report.MAX_MESSAGE_BYTES < log.stat().st_size <= report.MAX_MESSAGE_BYTES
    event = parse(log.read_text())
    assert isinstance(event, Failed)
    assert (event.rank, event.exit_code) == ("3", 64)
    assert event.message.startswith("missing: " + character * 100)


def test_error_is_recorded_if_standard_output_is_on_a_full_disk(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "from workload import exit_codes, report\n"
        "report.TERMINATION_LOG = pathlib.Path(sys.argv[1])\n"
        "exit_codes.exit_process(report.fail('the disk is full', exit_codes.BAD_INPUT))\n"
    )
    log = tmp_path / "termination-log"
    log.touch()
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program, str(log)]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (64, "")
    event = parse(log.read_text())
    assert isinstance(event, Failed)
    assert event.message == "the disk is full"


def test_program_continues_if_standard_output_is_on_a_full_disk() -> None:
    program = (
        "from workload import exit_codes, report\n"
        "report.emit('step', step=1)\n"
        "exit_codes.exit_process(exit_codes.DONE)\n"
    )
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", program]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (0, "")
