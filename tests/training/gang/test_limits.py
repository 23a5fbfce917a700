"""Limits of time: what may take longer than an operation between processes."""

import functools
import time
from pathlib import Path

import pytest
import torch

from tests.training.forked_gang import run_gang
from tests.training.programs import arguments, free_port, start
from training.gang.distributed import await_peers, joined, patient_group
from training.gang.world import World
from workload import exit_codes
from workload.run.ranks import all_or_none, on_rank0

CPU = torch.device("cpu")
LIMIT = 2.0
WORK = 2 * LIMIT
"""Seconds of a check of data or a write, longer than the limit of an operation."""


def beats_while_rank0_works(world: World) -> int:
    beats: list[float] = []
    with joined(world, CPU, LIMIT):
        patient = patient_group()
        slow = world.is_rank0
        check = functools.partial(time.sleep, WORK if slow else 0)
        all_or_none(lambda: await_peers(check, patient, lambda: beats.append(time.time())), patient)
        on_rank0(lambda: time.sleep(WORK), patient)
    return len(beats)


def test_a_check_of_data_on_one_rank_may_take_longer_than_an_operation(tmp_path: Path) -> None:
    # The waiting process reports to its watchdog that it waits.
    assert run_gang(2, beats_while_rank0_works, tmp_path)[1] > WORK


def fail_on_rank1(world: World) -> str:
    def action() -> None:
        if not world.is_rank0:
            raise OSError("bad disk")

    with joined(world, CPU, 60), pytest.raises(OSError, match="bad disk"):
        all_or_none(action, patient_group())
    return "ended"


def test_a_check_that_fails_on_one_rank_ends_all(tmp_path: Path) -> None:
    assert run_gang(2, fail_on_rank1, tmp_path) == ["ended"] * 2


def test_a_pod_may_start_later_than_the_peer_timeout(tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    flags = arguments(tmp_path / "run", "--peer-timeout=5", "--start-timeout=120", "--epochs=1")
    first = start("training", flags, {"RANK": "0", **shared}, tmp_path / "rank-0")
    time.sleep(8)
    second = start("training", flags, {"RANK": "1", **shared}, tmp_path / "rank-1")
    assert [first.exit_code(), second.exit_code()] == [exit_codes.DONE] * 2, first.text
