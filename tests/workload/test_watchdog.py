import json
import threading
from pathlib import Path

from tests.training.programs import Program, start
from workload import exit_codes
from workload.run import Watchdog


def start_program(method: str, folder: Path) -> Program:
    return start("tests.workload.hanging", [method], {}, folder / "output")


def test_a_hanging_process_dumps_its_stacks_and_exits_as_hung(tmp_path: Path) -> None:
    program = start_program("sleeps", tmp_path)
    assert program.exit_code() == exit_codes.HUNG
    assert "in hang" in program.text
    [event] = [json.loads(line) for line in program.text.splitlines() if line.startswith("{")]
    assert (event["event"], event["exit_code"]) == ("error", 76)
    assert "no step for 1 seconds" in event["message"]


def test_a_process_blocked_by_the_gil_dumps_its_stacks_and_exits(tmp_path: Path) -> None:
    program = start_program("holds the GIL", tmp_path)
    assert program.exit_code() == exit_codes.FAILED
    assert "in hang" in program.text


def test_regular_beats_keep_a_process_alive(tmp_path: Path) -> None:
    program = start_program("no", tmp_path)
    assert (program.exit_code(), program.text) == (0, "")


def test_zero_timeout_starts_no_watchdog_thread() -> None:
    with Watchdog(0):
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]
