"""State of a run, its saving and its resumption."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.checkpoints import storage
from training.checkpoints.saver import Saver
from training.checkpoints.sharded_tensors import Tensors, assign_tensors, read
from training.checkpoints.storage import CheckpointInfo, Position, Seal
from training.config import TrainingConfig
from training.data import Dataset
from training.data.loader import scale
from training.gang.distributed import all_or_none, gather, on_rank0
from training.gang.watchdog import Watchdog
from training.gang.world import World
from training.parallel import Parallel
from training.telemetry.metrics import Metrics
from workload.configuration import ConfigurationError
from workload.progress import Message
from workload.report import emit


@dataclass
class Run:
    """State of a run in one process. `loss_sum` (a scalar) and `samples` belong to this epoch."""

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
    stop_requested: bool = False

    @property
    def folder(self) -> Path:
        """Return the directory of the run, shared by all processes."""
        return Path(self.config.run_dir)

    @property
    def seconds(self) -> float:
        """Return the training time over all attempts, without the pauses between them."""
        return time.monotonic() - self.started


def save(run: Run, held_out_loss: float | None = None) -> None:
    """Save the run on all processes; each raises OSError when the previous save failed."""
    step = run.position.step
    with run.metrics.checkpoint_pause():
        info = CheckpointInfo(
            **_identity(run),
            position=Position(**vars(run.position)),
            processes=run.world.size,
            seconds=run.seconds,
            held_out_loss=held_out_loss,
        )
        tensors = assign_tensors(_tensors(run), run.world) | _rank_tensors(run)
        run.saver.save(tensors, info, lambda seconds: run.metrics.saved(step, seconds))
        if not run.config.checkpoint_async:
            run.saver.wait()
    run.watchdog.beat()


def resume(run: Run) -> bool:
    """Resume from the newest intact checkpoint; return False if there is none.

    Raises ConfigurationError when the checkpoint has another model or data set.
    """
    folder = run.folder / "checkpoints"
    for path in on_rank0(run.world, lambda: _found(folder)):
        seal = on_rank0(run.world, lambda path=path: storage.read_seal(path))  # type: ignore[misc]
        fault = seal if isinstance(seal, str) else _fault(run, path, seal)
        if isinstance(seal, Seal) and fault is None:
            _restore(run, path, seal)
            return True
        if run.world.is_rank0:
            emit(Message(event="warning", message=f"{path} is damaged and skipped: {fault}"))
    return False


def _found(folder: Path) -> list[Path]:
    storage.remove_unfinished(folder)
    return storage.list_checkpoints(folder)[::-1]


def _fault(run: Run, path: Path, seal: Seal) -> str | None:
    """Return what is wrong with the files; each process checks some of them."""
    mine = seal.files[run.world.rank :: run.world.size]
    faults = gather(storage.find_fault(path, mine), run.saver.group)
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
    _create_optimizer_state(run.optimizer)
    same = seal.processes == run.world.size
    prefixes: tuple[str, ...] = (_prefix(run.world.rank if same else 0),)
    if not same:
        prefixes += tuple(f"{_prefix(rank)}progress" for rank in range(seal.processes))
    try:
        own = all_or_none(lambda: read(path, _tensors(run), prefixes, run.saver.group))
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
    run.model.rebuild_buckets(scale(torch.from_numpy(inputs).to(run.device), samples.white))
    _restore_rank_tensors(run, own, same)


def _tensors(run: Run) -> Tensors:
    """Return the replicated or sharded tensors under the names of the model's parameters."""
    tensors: Tensors = {}
    for name, parameter in run.model.parameters().items():
        tensors[f"model/{name}"] = parameter.detach()
        for slot, value in run.optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}/{slot}"] = value
    return tensors


def _create_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the optimizer's tensors by a step that changes nothing, so that they can be filled."""
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


def _rank_tensors(run: Run) -> Tensors:
    """Return the state that differs by process: RNG, loss scale, buffers and the loss so far."""
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


def _restore_rank_tensors(run: Run, stored: Tensors, same: bool) -> None:
    """Restore this process's state; with another number of processes, that of rank 0."""
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
    elif not run.world.is_rank0:
        return
    # With another number of processes, rank 0 takes over the epoch's loss so far.
    loss_sum, samples = torch.stack(list(progress.values())).sum(0).tolist()
    run.loss_sum.fill_(loss_sum)
    run.samples = int(samples)


def _buffers(run: Run) -> Tensors:
    """Return the buffers in the model's state, such as batch norm statistics."""
    names = run.model.model.state_dict().keys()
    return {name: buffer for name, buffer in run.model.model.named_buffers() if name in names}
