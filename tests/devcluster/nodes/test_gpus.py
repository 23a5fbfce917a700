"""Metrics of simulated GPUs, derived from real processes."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import DevclusterError
from devcluster.nodes.gpus import POWER_IDLE, VISIBLE_DEVICES, Gpus, Hardware, server

SAMPLE_INTERVAL = 0.05

FIRST, SECOND, THIRD = UUIDS = [f"GPU-simulated-test-{index}" for index in range(3)]
TOTAL = 81920
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
"""ID of the latest process, which root may change (proc_sys_kernel(5))."""
BUSY_PROGRAM = "while True: pass"
SLEEPING_PROGRAM = "import time; time.sleep(600)"
BUSY_FOR_ONE_SECOND = f"""
import time
while time.process_time() < 1:
    pass
print(flush=True)
{SLEEPING_PROGRAM}
"""
# Pages are only counted after they have been written to.
ALLOCATING_PROGRAM = f"held = bytearray(b'x') * (64 * 2**20); print(flush=True); {SLEEPING_PROGRAM}"

Start = Callable[[str, str], "subprocess.Popen[str]"]


@pytest.fixture
def faults(tmp_path: Path) -> Path:
    return tmp_path / "gpu-faults.json"


@pytest.fixture
def gpus(faults: Path, monkeypatch: pytest.MonkeyPatch) -> Gpus:
    monkeypatch.setattr("devcluster.nodes.gpus.SAMPLE_INTERVAL", SAMPLE_INTERVAL)
    return Gpus(Hardware(product="Simulated", memory_mib=TOTAL, uuids=UUIDS), faults)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program to which these GPUs are visible."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, visible: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(
            command, env={VISIBLE_DEVICES: visible}, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def field(gpus: Gpus, name: str) -> list[float]:
    """Return a field of each GPU from a new sample."""
    time.sleep(SAMPLE_INTERVAL)
    return [gpu["fields"][f"DCGM_FI_DEV_{name}"] for gpu in gpus.read()]


def await_use(gpus: Gpus, condition: Callable[[list[float]], bool]) -> list[float]:
    deadline = time.monotonic() + 300
    while not condition(found := field(gpus, "GPU_UTIL")):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_an_unassigned_gpu_is_idle(gpus: Gpus) -> None:
    first = gpus.read()[0]
    assert (first["index"], first["uuid"], first["product"]) == (0, FIRST, "Simulated")
    assert first["fields"] == {
        "DCGM_FI_DEV_GPU_UTIL": 0,
        "DCGM_FI_DEV_FB_USED": 0,
        "DCGM_FI_DEV_FB_FREE": TOTAL,
        "DCGM_FI_DEV_POWER_USAGE": POWER_IDLE,
        "DCGM_FI_DEV_XID_ERRORS": 0,
    }


def test_gpu_is_utilized_by_a_busy_process_but_not_by_a_sleeping_one(
    gpus: Gpus, start: Start
) -> None:
    start(BUSY_PROGRAM, FIRST)
    start(SLEEPING_PROGRAM, SECOND)
    found = await_use(gpus, lambda use: use[0] > 0 and use[1] == 0)
    assert 0 < found[0] <= 100
    assert found[2] == 0
    power = field(gpus, "POWER_USAGE")
    assert power[0] > power[2] == POWER_IDLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may choose the ID of a process")
def test_process_that_reuses_an_id_does_not_inherit_the_cpu_time_of_the_earlier_one(
    gpus: Gpus, start: Start
) -> None:
    first = start(BUSY_FOR_ONE_SECOND, FIRST)
    assert first.stdout is not None
    first.stdout.readline()
    gpus.read()
    first.kill()
    first.wait()
    LAST_PID.write_text(str(first.pid - 1))
    while (second := start(BUSY_PROGRAM, FIRST)).pid != first.pid:  # another process was faster
        second.kill()
        second.wait()
        LAST_PID.write_text(str(first.pid - 1))
    time.sleep(2 * SAMPLE_INTERVAL)
    assert await_use(gpus, lambda use: use[0] != 0)[0] > 0


def test_load_of_a_process_is_divided_among_its_gpus(gpus: Gpus, start: Start) -> None:
    start(BUSY_PROGRAM, f"{FIRST},{THIRD}")
    use = await_use(gpus, lambda use: use[0] > 0)
    assert use[0] == use[2] < 100
    assert use[1] == 0


def test_process_that_only_monitors_gpus_uses_none(gpus: Gpus, start: Start) -> None:
    start(BUSY_PROGRAM, "all")
    start(BUSY_PROGRAM, FIRST)
    use = await_use(gpus, lambda use: use[0] > 0)
    assert use[1:] == [0, 0]


def test_gpu_memory_is_the_private_memory_of_its_processes(gpus: Gpus, start: Start) -> None:
    process = start(ALLOCATING_PROGRAM, FIRST)
    assert process.stdout is not None
    process.stdout.readline()
    (used, *others), (free, *_) = field(gpus, "FB_USED"), field(gpus, "FB_FREE")
    assert used >= 64
    assert others == [0, 0]
    assert used + free == TOTAL
    process.kill()
    process.wait()
    assert field(gpus, "FB_USED") == [0, 0, 0]


def test_faults_are_injected_while_the_fault_file_exists(gpus: Gpus, faults: Path) -> None:
    faults.write_text('{"1": {"DCGM_FI_DEV_XID_ERRORS": 79}}')
    assert field(gpus, "XID_ERRORS") == [0, 79, 0]
    assert field(gpus, "FB_FREE") == [TOTAL] * 3
    faults.unlink()
    assert field(gpus, "XID_ERRORS") == [0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"0": {"XID": 79}}', "XID"),
        ("[", "gpu-faults.json"),
        ('{"0": {"DCGM_FI_DEV_XID_ERRORS": "broken"}}', "valid number"),
        ('{"3": {"DCGM_FI_DEV_XID_ERRORS": 79}}', "GPU 3 does not exist; use an index from 0 to 2"),
    ],
)
def test_invalid_fault_file_is_rejected(gpus: Gpus, faults: Path, text: str, message: str) -> None:
    faults.write_text(text)
    with pytest.raises(DevclusterError, match=message):
        gpus.read()


def test_connected_clients_receive_gpu_metrics(gpus: Gpus, faults: Path, tmp_path: Path) -> None:
    where = tmp_path / "pod-resources" / "gpus.sock"
    with server(where, gpus) as served:
        answering = threading.Thread(target=served.serve_forever)
        answering.start()
        try:
            faults.write_text('{"2": {"DCGM_FI_DEV_XID_ERRORS": 31}}')
            found = [request_metrics(where) for _ in range(2)]
        finally:
            served.shutdown()
            answering.join()
    assert [each["uuid"] for each in found[0]] == UUIDS
    assert found[1][2]["fields"]["DCGM_FI_DEV_XID_ERRORS"] == 31


def request_metrics(where: Path) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(where))
        return list(json.loads(connection.makefile().read()))


def test_a_leftover_socket_is_replaced(gpus: Gpus, tmp_path: Path) -> None:
    where = tmp_path / "gpus.sock"
    for _ in range(2):
        with server(where, gpus):
            assert where.is_socket()
