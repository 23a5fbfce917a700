import json
import subprocess
import sys
import threading

from training.gang.watchdog import Watchdog
from workload import exit_codes

STANDS_STILL = """
import ctypes, time
from training.gang.watchdog import Watchdog

def stuck():
    {}

with Watchdog(2) as watchdog:
    for _ in range(4):
        time.sleep(0.6)
        watchdog.beat()
    stuck()
time.sleep(2.5)
"""


def end_of(stuck: str) -> subprocess.CompletedProcess[str]:
    code = STANDS_STILL.format(stuck)
    return subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=240
    )


def test_a_process_that_stands_still_shows_where_and_ends_as_hung() -> None:
    ended = end_of("time.sleep(300)")
    assert ended.returncode == exit_codes.HUNG
    assert "in stuck" in ended.stderr
    said = json.loads(ended.stdout)
    assert (said["event"], said["exit_code"]) == ("error", 76)
    assert "no step for 2 seconds" in said["message"]


def test_a_library_that_keeps_pythons_lock_is_shown_and_ended_as_well() -> None:
    ended = end_of("ctypes.PyDLL(None).sleep(300)")
    assert ended.returncode == exit_codes.FAILED
    assert "in stuck" in ended.stderr


def test_who_beats_in_time_goes_on_and_afterwards_nobody_watches() -> None:
    ended = end_of("pass")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_without_a_limit_nobody_watches() -> None:
    with Watchdog(0):
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]
