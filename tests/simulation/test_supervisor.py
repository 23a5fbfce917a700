"""A real supervisor process and real services that exit."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulation.supervisor import EventLog

PROGRAM = """
import os, subprocess, sys
from pathlib import Path
from simulation import supervisor
from simulation.supervisor import Service, Supervisor

supervisor.RESTART_DELAY = 0.02
logs = Path(sys.argv[1])
running = Supervisor(logs)
running.on_orphan = lambda pid: (logs / "orphan").write_text(str(pid))
running.start(Service("short", ["sh", str(logs / "short.sh")], {"GREETING": "hello"}))
running.start(Service("long", ["sleep", "600"], before=lambda: (logs / "before").touch()))
orphan = os.posix_spawn("/bin/true", ["true"], {})
(logs / "spawned").write_text(str(orphan))
running.run_forever()
"""

Supervised = subprocess.Popen[bytes]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervised]:
    script = tmp_path / "short.sh"
    script.write_text('echo "$GREETING from $$"\nsleep 0.05\nexit 3\n')
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command) as process:
        yield process
        process.kill()
    for name in ("short", "long"):
        subprocess.run(["kill", "-KILL", (tmp_path / f"{name}.pid").read_text()], check=False)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_an_exited_service_is_restarted(supervisor: Supervised, tmp_path: Path) -> None:
    log = tmp_path / "short.log"
    wait_until(lambda: text(log).count("hello from") >= 3)
    lines = text(log).splitlines()
    assert lines[1] == "--- short exited with 3; restarting"
    assert len({line for line in lines if line.startswith("hello")}) >= 3


def test_a_running_service_is_not_restarted(supervisor: Supervised, tmp_path: Path) -> None:
    wait_until(lambda: text(tmp_path / "short.log").count("hello") >= 2)
    assert text(tmp_path / "long.log") == ""
    assert (tmp_path / "before").exists()


def test_exit_of_an_orphaned_process_is_reported(supervisor: Supervised, tmp_path: Path) -> None:
    wait_until(lambda: text(tmp_path / "orphan") != "")
    assert text(tmp_path / "orphan") == text(tmp_path / "spawned")


def test_a_killed_service_is_restarted(supervisor: Supervised, tmp_path: Path) -> None:
    wait_until(lambda: text(tmp_path / "long.pid") != "")
    first = text(tmp_path / "long.pid")
    subprocess.run(["kill", "-KILL", first], check=True)
    wait_until(lambda: text(tmp_path / "long.pid") not in ("", first))
    assert "--- long exited with -9; restarting" in text(tmp_path / "long.log")


def test_the_supervisor_stops_on_request(supervisor: Supervised, tmp_path: Path) -> None:
    wait_until(lambda: text(tmp_path / "short.log").count("hello") >= 2)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(500) == 0


UNSTARTABLE = """
import sys
from pathlib import Path
from simulation import supervisor
from simulation.supervisor import Service, Supervisor

supervisor.RESTART_DELAY = 0.02
logs = Path(sys.argv[1])

def once():
    (logs / "once").touch(exist_ok=False)

running = Supervisor(logs)
running.start(Service("first", ["true"], before=once))
running.start(Service("second", ["sh", "-c", "echo turn; sleep 0.05"]))
running.run_forever()
"""


def test_a_failed_restart_does_not_stop_other_services(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", UNSTARTABLE, str(tmp_path)]) as process:
        wait_until(lambda: "could not be restarted" in text(tmp_path / "first.log"))
        turns = text(tmp_path / "second.log").count("turn")
        wait_until(lambda: text(tmp_path / "second.log").count("turn") > turns + 1)
        assert process.poll() is None
        process.kill()


FULL_DISK = """
import sys
from pathlib import Path
from simulation import supervisor
from simulation.supervisor import Service, Supervisor

supervisor.RESTART_DELAY = 0.02
logs = Path(sys.argv[1])
running = Supervisor(logs)
running.start(Service("short", ["sh", "-c", f"echo turn >> {logs}/turns"]))
program = f"echo start >> {logs}/starts; [ -e {logs}/long ] && exec sleep 20; touch {logs}/long"
running.start(Service("long", ["sh", "-c", program]))
(logs / "long.pid").unlink()
(logs / "long.pid").symlink_to("/dev/full")
running.run_forever()
"""


def test_a_service_is_restarted_while_the_disk_is_full(tmp_path: Path) -> None:
    (tmp_path / "short.log").symlink_to("/dev/full")
    with subprocess.Popen([sys.executable, "-c", FULL_DISK, str(tmp_path)]) as process:
        wait_until(lambda: text(tmp_path / "turns").count("turn") > 9 or process.poll() is not None)
        assert process.poll() is None
        process.kill()
    assert text(tmp_path / "starts").splitlines() == ["start", "start"]


BUSY = """
import subprocess, sys, time
from pathlib import Path
from simulation.supervisor import Service, Supervisor

logs = Path(sys.argv[1])
running = Supervisor(logs)
running.on_orphan = lambda pid: (logs / "orphan").write_text(str(pid))
running.start(Service("short", ["sh", str(logs / "short.sh")]))
running.start(Service("long", ["sleep", "600"]))
while "turn\\n" * 3 not in (logs / "turns").read_text():
    subprocess.run(["sleep", "0.02"], check=True)
    running.restart_exited()
for pid in running.running:
    subprocess.run(["kill", "-KILL", str(pid)], check=True)
"""


def test_services_are_restarted_while_the_supervisor_is_busy(tmp_path: Path) -> None:
    (tmp_path / "turns").touch()
    (tmp_path / "short.sh").write_text(f"echo turn >> {tmp_path / 'turns'}\n")
    subprocess.run([sys.executable, "-c", BUSY, str(tmp_path)], check=True, timeout=500)
    assert "short exited with 0; restarting" in text(tmp_path / "short.log")
    assert text(tmp_path / "long.log") == ""
    assert not (tmp_path / "orphan").exists()


def test_events_are_read_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.add("gpu-node-0", "API server is ready")
    log.add("gpu-node-0", "node is Ready", ready=True)
    log.add("gpu-node-1", "failed", error="no such image: été")
    first, second, third = log.read()
    assert (first.node, first.step, first.ready) == ("gpu-node-0", "API server is ready", False)
    assert second.ready
    assert third.error == "no such image: été"
    assert first.time <= second.time <= third.time


def test_a_missing_log_has_no_events(tmp_path: Path) -> None:
    assert list(EventLog(tmp_path / "events").read()) == []


def test_incomplete_lines_are_skipped_until_they_are_complete(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.add("gpu-node-0", "whole")
    lines = log.path.read_text()
    log.path.write_text(lines + lines[:-10])
    assert [event.step for event in log.read()] == ["whole"]
    log.path.write_text(lines + lines)
    assert len(list(log.read())) == 2


def test_error_with_several_lines_is_one_event(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events")
    log.add("gpu-node-0", "failed", error="first\nsecond")
    (event,) = log.read()
    assert event.error == "first\nsecond"
