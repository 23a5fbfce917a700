"""Killed and resumed runs have bitwise equal losses, and see every sample once per epoch."""

import json
import secrets
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.custom_models import Dropping, Normalized, Steep
from tests.training.programs import Program, kill, start_gang, until
from workload import exit_codes

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
    # The second gang computes what the first gang left of the 2,048 samples.
    assert max(steps) == step + -(-(2048 - seen) // (50 * new_size))
    [epoch] = [json.loads(line) for line in resumed[0].text.splitlines() if '"epoch",' in line]
    assert epoch["samples"] == 2048
    assert epoch["loss"] < 2.4
