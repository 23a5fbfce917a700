"""Gangs killed at random times, including during saves, lose no checkpoint.

Resumed runs have bitwise equal losses, and see every sample once per epoch.
"""

import json
import secrets
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.custom_models import Dropping, Normalized, Steep
from tests.training.programs import Program, kill, start_gang, until
from training.checkpoints import storage
from workload import exit_codes, files

KILLS = 6
IN_SAVES = 2
"""Minimum number of kills during saves. The test continues until this number is reached."""
FLAGS = ["--model=digits-net", "--epochs=2000", "--batch-size=64", "--checkpoint-steps=2"]
DIGITS = ["--model=digits-net", "--dataset=synthetic", "--batch-size=64"]
STEPS = 16
"""One epoch of two processes with synthetic data, and more than one epoch with digits."""

DROPOUT = [f"--model={Dropping.__module__}:Dropping", "--dataset=digits"]
"""A custom model with dropout, which depends on the restored random number generator."""

KINDS = {
    "ddp with dropout": DROPOUT,
    "fsdp": ["--parallel=fsdp"],
    "fp16 with accumulation, clipping and compression": [
        f"--model={Steep.__module__}:Steep", "--dataset=digits", "--precision=fp16",
        "--accumulate=2", "--batch-size=32", "--clip-norm=1",
        "--gradient-compression=bf16",
    ],
    "fsdp with bf16, accumulation and checkpointed activations": [
        "--parallel=fsdp", "--precision=bf16", "--accumulate=2", "--batch-size=32",
        "--clip-norm=1", "--activation-checkpointing=true", "--optimizer=sgd",
    ],
}  # fmt: skip


def newest_intact_step(run_dir: Path) -> int:
    """Check that every checkpoint is intact, and return the step of the newest."""
    steps = 0
    for path in files.list_checkpoints(run_dir / "checkpoints"):
        seal = storage.read_seal(path)
        assert isinstance(seal, storage.Seal), seal
        assert storage.find_fault(path, seal.files) is None
        steps = seal.position.step
    return steps


def newest_name(run_dir: Path) -> str:
    """Return the name of the newest checkpoint, intact or not."""
    return max((path.name for path in files.list_checkpoints(run_dir / "checkpoints")), default="")


def is_training(gang: list[Program]) -> bool:
    assert all(program.process.is_alive() for program in gang), gang[0].text
    return '"event": "start"' in gang[0].text or '"event": "resume"' in gang[0].text


def test_no_checkpoint_is_lost_when_a_gang_is_killed(tmp_path: Path) -> None:
    run_dir, reached, kills, in_a_save = tmp_path / "run", 0, 0, 0
    while kills < KILLS or in_a_save < IN_SAVES:
        assert kills < 50, f"only {in_a_save} of {kills} kills interrupted a save"
        gang = start_gang([*FLAGS, f"--run-dir={run_dir}"], 2, tmp_path / str(kills))
        until(lambda gang=gang: is_training(gang))  # type: ignore[misc]
        # Wait for up to three saves, so that the run proceeds. Kill the gang after a random delay.
        for _ in range(kills % 4):
            newest = newest_name(run_dir)
            until(lambda newest=newest: newest_name(run_dir) != newest)  # type: ignore[misc]
        time.sleep(secrets.randbelow(100) / 1000)
        for program in gang:
            program.signal(signal.SIGKILL)
        assert [program.exit_code() for program in gang] == [-signal.SIGKILL] * 2
        assert "is damaged" not in gang[0].text
        kills += 1
        in_a_save += any((run_dir / "checkpoints").glob(".step-*.tmp"))
        last_step, reached = reached, newest_intact_step(run_dir)
        assert reached >= last_step
    assert reached > kills


def test_full_disk_ends_the_run_and_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    """Simulate a full disk by limiting files to 64 KiB while the gang runs."""
    run_dir = tmp_path / "run"
    flags = ["--model=digits-net", "--epochs=2000", f"--run-dir={run_dir}", "--step-delay=0.01"]
    gang = start_gang(flags, 2, tmp_path / "out")
    until(lambda: newest_intact_step(run_dir) > 0)
    last_step = newest_intact_step(run_dir)
    for program in gang:
        program.limit_files(64 * 1024)
    assert [program.exit_code() for program in gang] == [exit_codes.FAILED] * 2
    assert "the run cannot be saved" in gang[0].text
    assert newest_intact_step(run_dir) >= last_step


def losses(program: Program) -> dict[int, float]:
    """Return the losses by step as rank 0 logged them, in full precision."""
    events = [json.loads(line) for line in program.text.splitlines() if line.startswith("{")]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def gang(run_dir: Path, size: int, output: Path, *options: str) -> list[Program]:
    flags = [*DIGITS, f"--run-dir={run_dir}", "--log-every=1", "--checkpoint-steps=3", *options]
    return start_gang(flags, size, output)


def finish(programs: list[Program]) -> dict[int, float]:
    assert [program.exit_code() for program in programs] == [exit_codes.DONE] * len(programs)
    return losses(programs[0])


@pytest.mark.parametrize("kind", KINDS)
def test_killed_run_resumes_with_bitwise_equal_losses(kind: str, tmp_path: Path) -> None:
    flags = [*KINDS[kind], f"--train-steps={STEPS}"]
    uninterrupted = gang(tmp_path / "whole", 2, tmp_path / "a", *flags)
    step = 4 + secrets.randbelow(11)
    killed = gang(tmp_path / "parts", 2, tmp_path / "b", *flags, "--step-delay=0.1")
    saved = tmp_path / "parts/checkpoints"
    until(lambda: step in losses(killed[0]) and any(saved.glob("step-*")))
    # An asynchronous save may be in any state at this moment.
    kill(killed)
    resumed = gang(tmp_path / "parts", 2, tmp_path / "c", *flags)
    resumed_losses, expected = finish(resumed), finish(uninterrupted)
    assert '"event": "resume"' in resumed[0].text
    assert min(resumed_losses) > 1
    assert losses(killed[0]) | resumed_losses == expected
    assert {step: expected[step] for step in resumed_losses} == resumed_losses
    assert newest_state(tmp_path / "parts") == newest_state(tmp_path / "whole")


def newest_state(run_dir: Path) -> dict[str, dict[str, list[int]]]:
    """Return the bytes of all tensors in the newest checkpoint, by file and name."""
    newest = max((run_dir / "checkpoints").glob("step-*"))
    return {
        path.name: {
            name: tensor.contiguous().flatten().view(torch.uint8).tolist()
            for name, tensor in load_file(path).items()
        }
        for path in newest.glob("*.safetensors")
    }


@pytest.mark.parametrize(
    "kind", [[f"--model={Normalized.__module__}:Normalized"], ["--parallel=fsdp"]]
)
@pytest.mark.parametrize(("old_size", "new_size"), [(2, 1), (1, 2)])
def test_gang_of_another_size_resumes_with_each_remaining_sample_once(
    old_size: int, new_size: int, kind: list[str], tmp_path: Path
) -> None:
    flags = [*kind, "--batch-size=50", "--epochs=1"]
    killed = gang(tmp_path / "run", old_size, tmp_path / "a", *flags, "--step-delay=0.1")
    until(lambda: 8 in losses(killed[0]))
    kill(killed)
    resumed = gang(tmp_path / "run", new_size, tmp_path / "b", *flags)
    steps = finish(resumed)
    step, seen = min(steps) - 1, (min(steps) - 1) * 50 * old_size
    # The second gang processes the samples, out of 2,048, that the first gang has not processed.
    assert max(steps) == step + -(-(2048 - seen) // (50 * new_size))
    [epoch] = [json.loads(line) for line in resumed[0].text.splitlines() if '"epoch",' in line]
    assert epoch["samples"] == 2048
    assert epoch["loss"] < 2.4
