"""Event files, read with TensorBoard's own reader."""

import sys
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from training.telemetry.files import LOSSES_PER_COPY, EventFiles
from workload.configuration import ConfigurationError


def curve(folder: Path, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder)).Reload().Scalars(name)
    return [(event.step, round(event.value, 4)) for event in events]


def write_steps(files: EventFiles, first: int, last: int, loss: float) -> None:
    for step in range(first, last + 1):
        files.stepped(step, torch.tensor(loss + step), 0.001 * step)


def test_curves_contain_every_step_and_epoch(tmp_path: Path) -> None:
    count = LOSSES_PER_COPY + 5
    with EventFiles(tmp_path) as files:
        write_steps(files, 1, count, loss=0.5)
        files.add_scalars(count, accuracy=0.75, held_out_loss=1.5)
    assert curve(tmp_path, "loss") == [(step, step + 0.5) for step in range(1, count + 1)]
    assert curve(tmp_path, "learning_rate")[-1] == (count, 0.001 * count)
    assert curve(tmp_path, "accuracy") == [(count, 0.75)]


def test_resumed_run_replaces_the_curve_after_its_checkpoint(tmp_path: Path) -> None:
    killed = EventFiles(tmp_path)
    write_steps(killed, 1, 7, loss=0.1)
    killed.flush()
    with EventFiles(tmp_path, step=4) as files:
        write_steps(files, 5, 9, loss=0.2)
    expected = [(step, step + (0.1 if step <= 4 else 0.2)) for step in range(1, 10)]
    assert curve(tmp_path, "loss") == expected
    killed.close()


def test_error_names_the_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigurationError, match="install tensorboard in the image"):
        EventFiles(tmp_path)
