"""All that changes while a run goes on: what of it is saved, and how it is taken up again."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training import checkpoint
from training.checkpoint import Described, Position, Seal
from training.config import TrainingConfig
from training.data import Dataset
from training.distributed import all_or_none, by_leader, gather
from training.loader import scale
from training.metrics import Metrics
from training.parallel import Parallel
from training.saver import Saver
from training.sharded_tensors import Tensors, read, share
from training.watchdog import Watchdog
from training.world import World
from workload.configuration import ConfigurationError
from workload.progress import Message
from workload.report import emit


@dataclass
class Run:
    """One process's part of a run. `loss_sum` (a scalar) and `samples` are of this epoch."""

    config: TrainingConfig
    world: World
    device: torch.device
    data: Dataset
    model: Parallel
    optimizer: torch.optim.Optimizer
    saver: Saver
    watchdog: Watchdog
    metrics: Metrics
    loss_sum: Tensor
    samples: int = 0
    position: Position = field(default_factory=Position)
    started: float = field(default_factory=time.monotonic)
    stop_asked: bool = False

    @property
    def folder(self) -> Path:
        """Of this run, shared by all processes."""
        return Path(self.config.run_dir)

    @property
    def seconds(self) -> float:
        """Since the run was first started, without the time between interruption and resumption."""
        return time.monotonic() - self.started


def save(run: Run, held_out_loss: float | None = None) -> None:
    """Save the run, all processes together; every one raises OSError when the last one failed."""
    step = run.position.step
    with run.metrics.pausing():
        described = Described(
            **_identity(run),
            position=Position(**vars(run.position)),
            processes=run.world.size,
            seconds=run.seconds,
            held_out_loss=held_out_loss,
        )
        tensors = share(_tensors(run), run.world) | _own(run)
        run.saver.save(tensors, described, lambda seconds: run.metrics.saved(step, seconds))
        if not run.config.checkpoint_async:
            run.saver.wait()
    run.watchdog.beat()


def resume(run: Run) -> bool:
    """Take the run up where its newest intact checkpoint left it; False when there is none.

    Raises ConfigurationError when the checkpoint is of another model or data set.
    """
    folder = run.folder / "checkpoints"
    for path in by_leader(run.world, lambda: _found(folder)):
        seal = by_leader(run.world, lambda path=path: checkpoint.read_seal(path))  # type: ignore[misc]
        fault = seal if isinstance(seal, str) else _fault(run, path, seal)
        if isinstance(seal, Seal) and fault is None:
            _restore(run, path, seal)
            return True
        if run.world.leads:
            emit(Message(event="warning", message=f"{path} is damaged and left out: {fault}"))
    return False


def _found(folder: Path) -> list[Path]:
    checkpoint.remove_unfinished(folder)
    return checkpoint.checkpoints(folder)[::-1]


def _fault(run: Run, path: Path, seal: Seal) -> str | None:
    """What is wrong with any of the files; each process looks at some of them."""
    mine = seal.files[run.world.rank :: run.world.size]
    faults = gather(checkpoint.fault(path, mine), run.saver.group)
    return next((fault for fault in faults if fault is not None), None)


def _identity(run: Run) -> dict[str, str | int | dict[str, int | float | str | bool]]:
    config = run.config
    return {
        "model": config.model,
        "model_options": config.model_options,
        "dataset": config.dataset,
        "samples": len(run.data.train),
        "optimizer": config.optimizer,
    }


def _restore(run: Run, path: Path, seal: Seal) -> None:
    differences = [
        f"{name} {getattr(seal, name)} instead of {value}"
        for name, value in _identity(run).items()
        if getattr(seal, name) != value
    ]
    if differences:
        raise ConfigurationError(
            f"{path} is of a run with {', '.join(differences)}: choose another run_dir"
        )
    _begin_optimizer(run.optimizer)
    same = seal.processes == run.world.size
    beginnings: tuple[str, ...] = (_prefix(run.world.rank if same else 0),)
    if not same:
        beginnings += tuple(f"{_prefix(rank)}progress" for rank in range(seal.processes))
    try:
        own = all_or_none(lambda: read(path, _tensors(run), beginnings, run.saver.group))
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is of another {run.config.model}: {error}; choose another run_dir"
        ) from None
    run.position = Position(**vars(seal.position))
    run.saver.resumed(run.position.step)
    run.metrics.resumed(run.position.epoch, run.position.step)
    run.started = time.monotonic() - seal.seconds
    samples = run.data.train
    inputs, _ = samples.batch(np.resize(np.arange(len(samples)), 2))
    run.model.settle(scale(torch.from_numpy(inputs).to(run.device), samples.white))
    _restore_own(run, own, same)


def _tensors(run: Run) -> Tensors:
    """What all processes have alike, or in parts, under the names of the model's parameters."""
    tensors: Tensors = {}
    for name, parameter in run.model.parameters().items():
        tensors[f"model/{name}"] = parameter.detach()
        for slot, value in run.optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}/{slot}"] = value
    return tensors


def _begin_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's tensors, to be filled, by a step that changes nothing."""
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    for group in groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def _prefix(rank: int) -> str:
    return f"rank-{rank}/"


def _own(run: Run) -> Tensors:
    """What each process has for itself: random numbers, statistics, the loss of its samples."""
    scaler = run.model.scaler.state_dict()
    own = {
        "progress": torch.stack([run.loss_sum.cpu(), torch.tensor(float(run.samples)).double()]),
        "random/cpu": torch.get_rng_state(),
    }
    if run.device.type == "cuda":
        own["random/cuda"] = torch.cuda.get_rng_state(run.device)
    if scaler:
        own["scaler"] = torch.tensor([scaler["scale"], scaler["_growth_tracker"]]).double()
    own |= {f"buffers/{name}": buffer for name, buffer in _buffers(run).items()}
    return {_prefix(run.world.rank) + name: tensor for name, tensor in own.items()}


def _restore_own(run: Run, stored: Tensors, same: bool) -> None:
    """Take up what was this process's own, or with another number of processes the first one's."""
    progress = {name: stored[name] for name in stored if name.endswith("/progress")}
    prefix = _prefix(run.world.rank if same else 0)
    own = {name.removeprefix(prefix): stored[name] for name in stored if name.startswith(prefix)}
    for name, buffer in _buffers(run).items():
        buffer.copy_(own[f"buffers/{name}"])
    if "scaler" in own:
        scale, growth = own["scaler"].tolist()
        state = run.model.scaler.state_dict()
        if state:
            run.model.scaler.load_state_dict(
                state | {"scale": scale, "_growth_tracker": int(growth)}
            )
    if same:
        torch.set_rng_state(own["random/cpu"])
        if run.device.type == "cuda" and "random/cuda" in own:
            torch.cuda.set_rng_state(own["random/cuda"], run.device)
    elif not run.world.leads:
        return
    # With another number of processes the epoch's loss so far is carried on by one of them.
    loss_sum, samples = torch.stack(list(progress.values())).sum(0).tolist()
    run.loss_sum.fill_(loss_sum)
    run.samples = int(samples)


def _buffers(run: Run) -> Tensors:
    """Those that belong to the model's state, such as the statistics of batch norm."""
    names = run.model.model.state_dict().keys()
    return {name: buffer for name, buffer in run.model.model.named_buffers() if name in names}
