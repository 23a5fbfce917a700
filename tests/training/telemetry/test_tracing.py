import gzip
import json
from pathlib import Path

import pytest
import torch

from training.telemetry.files import Tracer


def train(tracer: Tracer, steps: int) -> None:
    """Run steps that can be told apart: step n multiplies a matrix with n rows."""
    with tracer:
        for step in range(1, steps + 1):
            torch.ones(step, 64) @ torch.ones(64, 64)
            tracer.stepped()


def rows_multiplied(trace: Path) -> list[int]:
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    dims = [e["args"]["Input Dims"] for e in events if e.get("name") == "aten::matmul"]
    return [shapes[0][0] for shapes in dims]


@pytest.mark.parametrize("after", [0, 1, 4])
def test_trace_contains_only_the_configured_steps(tmp_path: Path, after: int) -> None:
    train(Tracer(tmp_path / "profile", 1, steps=3, after=after, before=100), 12)
    [written] = (tmp_path / "profile").iterdir()
    assert written.name == f"rank-1-step-{100 + after + 1:08d}.json.gz"
    assert rows_multiplied(written) == [after + 1, after + 2, after + 3]


def test_trace_is_written_if_the_run_ends_during_the_profile(tmp_path: Path) -> None:
    train(Tracer(tmp_path, 0, steps=10, after=2, before=0), 4)
    [written] = tmp_path.iterdir()
    assert rows_multiplied(written) == [3, 4]


def test_profile_is_not_written_if_profile_steps_is_zero(tmp_path: Path) -> None:
    train(Tracer(tmp_path / "profile", 0, steps=0, after=2, before=0), 4)
    assert not (tmp_path / "profile").exists()


def test_profile_is_not_written_if_the_run_ends_before_it_starts(tmp_path: Path) -> None:
    train(Tracer(tmp_path / "profile", 0, steps=2, after=9, before=0), 3)
    assert not (tmp_path / "profile").exists()
