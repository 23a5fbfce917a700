"""Preflight measurements in real gangs with gloo on one host."""

import functools
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.training.forked_gang import run_gang
from tests.training.programs import arguments, free_port, start
from training.config import TrainingConfig
from training.gang import measurements
from training.gang.distributed import joined
from training.gang.measurements import MEASUREMENTS, SlowNodeError, check_gang
from training.gang.world import World
from workload import exit_codes
from workload.progress import Failed, Preflight, SlowNode, parse

SLOW = 1
PAUSE = 0.1
SECONDS = 0.05
"""Duration (s) of a measurement, enough for several matrix products in all processes at once."""


def check_with_fault(preflight: str, fault: str, folder: Path, world: World) -> str:
    """Run the check in a gang on three nodes, one of which is faulty; return its error."""
    os.environ["NODE_NAME"] = "abca"[world.rank]
    # Skip the disk writes: a busy disk on the host would hide the simulated slow disk.
    measurements.write_probe = lambda *_: None  # type: ignore[attr-defined]
    measurements.MEASUREMENT_SECONDS = SECONDS  # type: ignore[misc]
    if world.rank == SLOW:
        FAULTS[fault]()
    config = TrainingConfig.model_validate({"preflight": preflight, "run_dir": str(folder)})
    device = torch.device("cpu")
    torch.set_num_threads(1)
    with joined(world, device, 60):
        # A process that fails early would close connections that others are still establishing.
        dist.barrier()
        try:
            check_gang(config, world, device, lambda: None)
        except SlowNodeError as error:
            return str(error)
    return ""


def slow_products() -> None:
    multiply = torch.mm

    def multiply_slowly(*arguments: Any, **options: Any) -> torch.Tensor:
        time.sleep(10 * PAUSE)
        return multiply(*arguments, **options)

    torch.mm = multiply_slowly


def slow_messages() -> None:
    send = torch.distributed.send

    def send_slowly(*arguments: Any, **options: Any) -> None:
        time.sleep(PAUSE)
        send(*arguments, **options)

    torch.distributed.send = send_slowly


def slow_disk() -> None:
    measurements.write_probe = lambda *_: time.sleep(1.5)  # type: ignore[attr-defined]


def wrong_clock() -> None:
    true_time = time.time
    time.time = lambda: true_time() + 5


FAULTS: dict[str, Callable[[], None]] = {
    "matmul": slow_products,
    "latency": slow_messages,
    "disk": slow_disk,
    "clock": wrong_clock,
}


def events(folder: Path, rank: int) -> list[Any]:
    return [parse(line) for line in (folder / f"rank-{rank}").read_text().splitlines()]


@pytest.mark.parametrize("fault", FAULTS)
def test_error_of_every_process_names_the_slow_node(fault: str, tmp_path: Path) -> None:
    errors = run_gang(
        4, functools.partial(check_with_fault, "strict", fault, tmp_path / "run"), tmp_path
    )
    assert len(set(errors)) == 1
    [line] = [line for line in errors[0].splitlines() if line.startswith("slow node b: ")]
    assert f"{fault} of rank {SLOW} is " in line
    slow_nodes = [each for each in events(tmp_path, 0) if isinstance(each, SlowNode)]
    assert (fault, "b", SLOW) in {(each.measurement, each.node, each.rank) for each in slow_nodes}
    assert not [each for each in events(tmp_path, 2) if each], "a rank other than 0 printed events"


def test_report_mode_names_the_slow_node_and_does_not_end_the_run(tmp_path: Path) -> None:
    action = functools.partial(check_with_fault, "report", "clock", tmp_path / "run")
    assert run_gang(4, action, tmp_path) == [""] * 4
    first, *slow_nodes = (each for each in events(tmp_path, 0) if each)
    assert isinstance(first, Preflight)
    assert set(first.line()) == {"event", "seconds", "all_reduce", *MEASUREMENTS}
    [slow] = [each for each in slow_nodes if each.measurement == "clock"]
    assert (slow.node, slow.rank, slow.unit) == ("b", SLOW, "s")
    assert slow.value == pytest.approx(5, abs=0.5)
    assert slow.median < 0.5
    assert not list((tmp_path / "run").iterdir())


def test_gang_with_gpus_is_not_measured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "gather", pytest.fail)
    world = World(rank=0, size=8, local_rank=0, master="gang:29500", local_size=8)
    check_gang(TrainingConfig(), world, torch.device("cuda"), lambda: None)


@pytest.mark.parametrize(("preflight", "size"), [("off", 3), ("strict", 2)])
def test_gang_too_small_for_a_median_or_without_preflight_is_not_measured(
    preflight: str, size: int, tmp_path: Path
) -> None:
    action = functools.partial(check_with_fault, preflight, "clock", tmp_path / "run")
    assert run_gang(size, action, tmp_path) == [""] * size
    assert not [each for each in events(tmp_path, 0) if each]


def test_read_only_run_dir_is_not_reported_by_the_measurements() -> None:
    assert measurements.disk_seconds(Path("/proc/run")) == {}
    assert measurements.memory_limits()["locked_memory"] > 0


def test_strict_run_with_a_deviating_node_exits_with_69_before_training(tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    gang = []
    for rank, node in enumerate("abc"):
        environment = {"RANK": str(rank), "NODE_NAME": node, "OMP_NUM_THREADS": "1", **shared}
        strict = arguments(tmp_path / "run", "--preflight=strict")
        gang.append(start("training", strict, environment, tmp_path / f"rank-{rank}"))
        if node == "b":
            # The gang is still waiting for its last process.
            pid = gang[-1].process.pid
            assert pid is not None
            _, hard = resource.prlimit(pid, resource.RLIMIT_MEMLOCK)
            resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (2**20, hard))
    assert [program.exit_code() for program in gang] == [exit_codes.SLOW_NODE] * 3
    for program in gang:
        error = parse(program.text.splitlines()[-1])
        assert isinstance(error, Failed)
        assert error.exit_code == exit_codes.SLOW_NODE
        assert "slow node b: locked_memory of rank 1 is 1.05e+06 bytes" in error.message
    assert '"event": "start"' not in gang[0].text
