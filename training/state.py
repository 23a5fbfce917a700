"""All that changes while a run goes on: how it is saved, and how it is taken up again."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training import checkpoint
from training.checkpoint import State
from training.config import ConfigurationError, TrainingConfig
from training.data import Dataset
from training.distributed import all_or_none, by_leader, gather
from training.metrics import Metrics
from training.report import emit
from training.watchdog import Watchdog
from training.world import World


@dataclass
class Position:
    """How far a run is: whole epochs, samples of all processes in this epoch, steps in all."""

    epoch: int = 0
    seen: int = 0
    step: int = 0


@dataclass
class Run:
    """One process's part of a run. `loss_sum` (a scalar) and `samples` are of this epoch."""

    config: TrainingConfig
    world: World
    device: torch.device
    data: Dataset
    model: nn.Module
    optimizer: torch.optim.Optimizer
    position: Position
    loss_sum: Tensor
    samples: int
    started: float
    watchdog: Watchdog
    metrics: Metrics
    stop_asked: bool = False

    @property
    def folder(self) -> Path:
        """Of this run, shared by all processes."""
        return Path(self.config.run_dir)

    @property
    def seconds(self) -> float:
        """Since the run was first started, without the time between interruption and resumption."""
        return time.monotonic() - self.started


def check_writable(folder: Path) -> None:
    """Find out before the first step that nothing could be saved. Raises ConfigurationError."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"run_dir {folder} cannot be written: {error.strerror}; "
            "mount a writable volume there or choose another folder"
        ) from None


def save(run: Run) -> None:
    """Save the run, all processes together; every one of them raises OSError when it failed."""
    with run.metrics.checkpoint_seconds.time():
        _save(run)
    run.watchdog.beat()


def _save(run: Run) -> None:
    own = {
        "rng": _random_state(run.device),
        "loss_sum": run.loss_sum.cpu(),
        "samples": run.samples,
    }
    by_rank = gather(own)
    state: State = {
        "model_name": run.config.model,
        "dataset": run.config.dataset,
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "position": vars(run.position),
        "seconds": run.seconds,
        "by_rank": by_rank,
    }
    folder, step, keep = run.folder / "checkpoints", run.position.step, run.config.keep_checkpoints
    by_leader(run.world, lambda: checkpoint.save(folder, step, state, keep))


def resume(run: Run) -> bool:
    """Take the run up where its newest intact checkpoint left it; False when there is none.

    Raises ConfigurationError when the checkpoint is of another model or data set.
    """
    path, faults = by_leader(run.world, lambda: checkpoint.newest(run.folder / "checkpoints"))
    if run.world.leads:
        for fault in faults:
            emit("warning", message=fault)
    if path is None:
        return False
    _restore(run, path, all_or_none(lambda: checkpoint.load(path)))
    return True


def _restore(run: Run, path: Path, state: State) -> None:
    found = (state["model_name"], state["dataset"])
    if found != (run.config.model, run.config.dataset):
        raise ConfigurationError(
            f"{path} is of model {found[0]} on {found[1]}, but this run is {run.config.model} "
            f"on {run.config.dataset}: choose another run_dir"
        )
    run.model.load_state_dict(state["model"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.position = Position(**state["position"])
    run.started = time.monotonic() - state["seconds"]
    by_rank = state["by_rank"]
    if len(by_rank) == run.world.size:
        own = by_rank[run.world.rank]
        run.loss_sum.copy_(own["loss_sum"])
        run.samples = own["samples"]
        _set_random_state(own["rng"], run.device)
    elif run.world.leads:
        # Another number of processes: the epoch's loss so far is carried on by one of them.
        run.loss_sum.copy_(sum(own["loss_sum"] for own in by_rank))
        run.samples = sum(own["samples"] for own in by_rank)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
