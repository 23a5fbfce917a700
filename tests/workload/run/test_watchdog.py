import json
import subprocess
import sys
import threading

from workload import exit_codes
from workload.run.watchdog import Watchdog

HANGING = """
import ctypes, time
from workload.run.watchdog import Watchdog

def stuck():
    {}

with Watchdog(1) as watchdog:
    for _ in range(4):
        time.sleep(0.3)
        watchdog.beat()
    stuck()
time.sleep(1.2)
"""


def end_of(stuck: str) -> subprocess.CompletedProcess[str]:
    code = HANGING.format(stuck)
    return subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=240
    )


def test_a_hanging_process_dumps_its_stacks_and_exits_as_hung() -> None:
    ended = end_of("time.sleep(300)")
    assert ended.returncode == exit_codes.HUNG
    assert "in stuck" in ended.stderr
    said = json.loads(ended.stdout)
    assert (said["event"], said["exit_code"]) == ("error", 76)
    assert "no step for 1 seconds" in said["message"]


def test_a_process_blocked_by_the_gil_dumps_its_stacks_and_exits() -> None:
    ended = end_of("ctypes.PyDLL(None).sleep(300)")
    assert ended.returncode == exit_codes.FAILED
    assert "in stuck" in ended.stderr


def test_regular_beats_keep_a_process_alive() -> None:
    ended = end_of("pass")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_no_timeout_starts_no_thread() -> None:
    with Watchdog(0):
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]
