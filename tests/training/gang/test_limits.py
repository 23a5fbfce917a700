"""Time limits of gangs: some work may take longer than the limit for a collective operation."""

import functools
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.custom_models import Slow
from tests.training.data.test_text import write_tokens
from tests.training.forked_gang import run_gang
from tests.training.programs import arguments, free_port, start
from training.config import TrainingConfig
from training.data import manifest
from training.data.progress import Report
from training.gang.distributed import (
    await_peers,
    await_rank0,
    is_lost_peer,
    joined,
)
from training.gang.world import World
from training.train import run
from workload import exit_codes
from workload.run import all_or_none, long_timeout_group

CPU = torch.device("cpu")
LIMIT = 2.0
WORK = 2 * LIMIT
"""Duration (s) of a data check or a write, which exceeds the limit for an operation."""


def beats_while_rank0_works(world: World) -> tuple[int, int]:
    checking: list[float] = []
    copying: list[float] = []
    with joined(world, CPU, LIMIT):
        group = long_timeout_group()
        slow = world.is_rank0
        check = functools.partial(time.sleep, WORK if slow else 0)
        all_or_none(lambda: await_peers(check, group, lambda: checking.append(time.time())), group)
        await_rank0(lambda: time.sleep(WORK), group, lambda: copying.append(time.time()))
    return len(checking), len(copying)


def test_work_on_one_rank_may_exceed_the_limit_for_an_operation(tmp_path: Path) -> None:
    # The waiting process notifies its watchdog while it waits.
    assert min(run_gang(2, beats_while_rank0_works, tmp_path)[1]) > WORK


def values_of_rank0(world: World) -> tuple[int, str]:
    def fail() -> int:
        raise OSError("the store is full")

    with joined(world, CPU, 60):
        group = long_timeout_group()
        value = await_rank0(lambda: 40 + world.rank, group, lambda: None)
        with pytest.raises(OSError, match="full") as caught:
            await_rank0(fail, group, lambda: None)
    return value, str(caught.value)


def test_results_and_errors_of_rank_0_reach_all_ranks(tmp_path: Path) -> None:
    assert run_gang(2, values_of_rank0, tmp_path) == [(40, "the store is full")] * 2


def fail_on_rank1(world: World) -> str:
    def action() -> None:
        if not world.is_rank0:
            raise OSError("bad disk")

    with joined(world, CPU, 60), pytest.raises(OSError, match="bad disk"):
        all_or_none(action, long_timeout_group())
    return "ended"


def test_check_that_fails_on_one_rank_fails_on_all_ranks(tmp_path: Path) -> None:
    assert run_gang(2, fail_on_rank1, tmp_path) == ["ended"] * 2


def test_a_pod_may_start_later_than_the_peer_timeout(tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    flags = arguments(tmp_path / "run", "--peer-timeout=5", "--start-timeout=120", "--epochs=1")
    first = start("training", flags, {"RANK": "0", **shared}, tmp_path / "rank-0")
    time.sleep(8)
    second = start("training", flags, {"RANK": "1", **shared}, tmp_path / "rank-1")
    assert [first.exit_code(), second.exit_code()] == [exit_codes.DONE] * 2, first.text


def train_with_slow_rank1(folder: Path, step: int, world: World) -> str:
    config = TrainingConfig.model_validate(
        {
            "model": f"{Slow.__module__}:Slow",
            "model_options": {"step": step, "seconds": WORK},
            "epochs": 1,
            "peer_timeout": LIMIT,
            "device": "cpu",
            "run_dir": str(folder / "run"),
        }
    )
    try:
        return str(run(config, world))
    except RuntimeError as error:
        return "lost peer" if is_lost_peer(error) else str(error)


def test_only_the_first_step_may_exceed_the_limit_for_an_operation(tmp_path: Path) -> None:
    first, later = tmp_path / "first", tmp_path / "later"
    for folder in (first, later):
        folder.mkdir()
    assert run_gang(2, functools.partial(train_with_slow_rank1, first, 1), first) == ["0"] * 2
    results = run_gang(2, functools.partial(train_with_slow_rank1, later, 3), later)
    assert results == ["lost peer"] * 2


def train_on_slowly_checked_tokens(folder: Path, world: World) -> int:
    verify = manifest.verify

    def verify_slowly(directory: Path, parts: Any, verification: Any, report: Report) -> None:
        for _ in range(8 if verification else 0):
            time.sleep(WORK / 8)
            report("checked a part")
        verify(directory, parts, verification, report)

    manifest.verify = verify_slowly
    config = TrainingConfig.model_validate(
        {
            "model": "gpt",
            "model_options": {"context": 8, "layers": 1, "width": 8, "heads": 1},
            "dataset": "tokens",
            "data_dir": str(folder),
            "epochs": 1,
            # The check takes longer than operations and steps may take.
            "peer_timeout": LIMIT,
            "start_timeout": LIMIT,
            "hang_timeout": LIMIT,
            "device": "cpu",
            "run_dir": str(folder / "run"),
        }
    )
    return run(config, world)


def test_run_waits_for_the_check_of_its_tokens(tmp_path: Path) -> None:
    write_tokens(tmp_path / "tokens", 400)
    train = functools.partial(train_on_slowly_checked_tokens, tmp_path)
    assert run_gang(2, train, tmp_path) == [exit_codes.DONE] * 2
    assert "checked a part" in (tmp_path / "rank-0").read_text()
