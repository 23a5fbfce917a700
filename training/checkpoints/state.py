"""Saving and resuming a run."""

import math
import time
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from training.checkpoints import storage
from training.checkpoints.sharded_tensors import Tensors, assign_tensors, read
from training.checkpoints.storage import Position, Seal
from training.data.loader import largest_batch, scale
from training.gang.distributed import await_rank0, gather
from training.run import DivergedError, Run, diverged_error, mean_loss
from workload import files
from workload.catalog import Option, equal_options
from workload.configuration import ConfigurationError
from workload.progress import Checkpointed, Message
from workload.report import emit
from workload.run import all_or_none, on_rank0

MODEL_PREFIX: Final = "model/"
AVERAGE_PREFIX: Final = "average/"
OPTIMIZER_PREFIX: Final = "optimizer/"


def save(run: Run) -> None:
    """Start saving the run in all processes.

    Raise OSError if the previous checkpoint could not be written. Raise DivergedError if a
    weight in that checkpoint, or a loss or gradient computed since then, is not finite.
    """
    mean_loss(run)
    step = run.position.step
    with run.metrics.activities.doing("checkpoint"), run.metrics.checkpoint_seconds.time():
        seal = Seal(
            **_identity(run),
            position=Position(**vars(run.position)),
            processes=run.world.size,
            seconds=run.seconds,
            held_out_loss=run.evaluation and run.evaluation.loss,
            files=(),
        )
        tensors = assign_tensors(_tensors(run), run.world) | _rank_tensors(run)
        error = diverged_error(run, "a weight became infinite or NaN")
        run.saver.save(
            tensors,
            seal,
            check=lambda copies: _require_finite_weights(copies, error),
            done=lambda seconds: _report_saved(run, step, seconds),
        )
    run.watchdog.beat()


def _require_finite_weights(tensors: Tensors, error: DivergedError) -> None:
    weights = [tensor for name, tensor in tensors.items() if name.startswith(MODEL_PREFIX)]
    local = [each.to_local() if isinstance(each, DTensor) else each for each in weights]
    # With FSDP, some processes have no elements of a parameter with few rows. Frozen parameters may
    # be integers, which have no norm.
    checked = [
        each for each in local if each.numel() and (each.is_floating_point() or each.is_complex())
    ]
    if not nn.utils.get_total_norm(checked, math.inf).isfinite():
        raise error


def _report_saved(run: Run, step: int, seconds: float) -> None:
    """Report a complete checkpoint. This may be called from any thread."""
    run.metrics.saved(step, seconds)
    if run.world.is_rank0:
        emit(Checkpointed(step=step, seconds=round(seconds, 3)))


def save_evaluation(run: Run, held_out_loss: float) -> None:
    """Add an evaluation to the checkpoint of this step, if there is one."""
    with run.metrics.activities.doing("checkpoint"):
        run.saver.amend(Position(**vars(run.position)), run.seconds, held_out_loss)


def resume(run: Run) -> bool:
    """Resume from the newest intact checkpoint; return False if there is none.

    If none is on disk, look for one in the object store. Raise OSError if a checkpoint cannot be
    read, and StoreError if the store fails. Raise ConfigurationError if the checkpoint belongs to a
    different model, data set, optimizer or seed.
    """
    return _resume(run) or (_restore_from_store(run) and _resume(run))


def _restore_from_store(run: Run) -> bool:
    mirror, beat = run.saver.mirror, run.watchdog.beat
    if mirror is None:
        return False
    return await_rank0(lambda: mirror.restore(beat), run.saver.group, beat)


def _resume(run: Run) -> bool:
    directory = run.directory / "checkpoints"
    for path in on_rank0(lambda: files.recover(directory)):
        seal = on_rank0(lambda path=path: storage.read_seal(path))  # type: ignore[misc]
        fault = seal if isinstance(seal, str) else _find_fault(run, path, seal)
        if isinstance(seal, Seal) and fault is None:
            _restore(run, path, seal)
            return True
        if run.world.is_rank0:
            emit(Message(event="warning", message=f"{path} is damaged and was skipped: {fault}"))
    return False


def _find_fault(run: Run, path: Path, seal: Seal) -> str | None:
    """Return a description of the first fault in the files, or None; each process checks a part."""
    mine = seal.files[run.world.rank :: run.world.size]
    fault = all_or_none(lambda: storage.find_fault(path, mine), run.saver.group)
    return next((each for each in gather(fault, run.saver.group) if each is not None), None)


def _identity(run: Run) -> dict[str, str | int | float | dict[str, Option] | None]:
    config = run.config
    return {
        "model": config.model,
        "model_options": config.model_options,
        "dataset": config.dataset,
        "samples": len(run.data.train),
        "optimizer": config.optimizer,
        "seed": config.seed,
        "data_sha256": run.data.identity,
        # `read` detects a different LoRA rank or other targets by tensor names and shapes.
        "lora_alpha": config.lora_alpha if config.lora_rank else None,
    }


def _restore(run: Run, path: Path, seal: Seal) -> None:
    differences = [
        f"{name}: {getattr(seal, name)}, now {value}"
        for name, value in _identity(run).items()
        if None not in (value, getattr(seal, name))
        and value != getattr(seal, name)
        and name != "model_options"
    ]
    options = run.config.model_options
    if not equal_options(run.config.model, seal.model_options, options):
        differences.append(f"model_options: {seal.model_options}, now {options}")
    if differences:
        raise ConfigurationError(
            f"{path} belongs to a run with different settings ({'; '.join(differences)}): choose "
            "another run_dir"
        )
    _create_optimizer_state(run.optimizer)
    same_size = seal.processes == run.world.size
    prefixes: tuple[str, ...] = (f"rank-{run.world.rank if same_size else 0}/",)
    if not same_size:
        prefixes += tuple(f"rank-{rank}/progress" for rank in range(seal.processes))
    try:
        stored, missing = all_or_none(
            lambda: read(
                path,
                _tensors(run),
                prefixes,
                optional_prefix=OPTIMIZER_PREFIX,
                exact_prefixes=(MODEL_PREFIX, AVERAGE_PREFIX),
                group=run.saver.group,
            )
        )
        _drop_optimizer_state(run, missing)
    except ValueError as error:
        raise ConfigurationError(
            f"{path} does not match the model {run.config.model}: {error}; use the run's previous "
            "model and settings, such as lora_rank and ema_decay, or choose another run_dir"
        ) from None
    run.position = Position(**vars(seal.position))
    run.unevaluated = seal.held_out_loss is None
    run.saver.resumed(path)
    run.metrics.resumed(run.position.epoch, run.position.step)
    run.started = time.monotonic() - seal.seconds
    samples = run.data.train
    # Use the run's batch size: with a different one, torch.compile would recompile the model's
    # blocks with dynamic shapes.
    count = largest_batch(samples, run.config.batch_size, run.world.size)
    inputs, _ = samples.batch(np.resize(np.arange(len(samples)), count))
    run.model.rebuild_buckets(scale(torch.from_numpy(inputs).to(run.device), samples.divisor))
    _restore_rank_tensors(run, stored, same_size)


def _tensors(run: Run) -> Tensors:
    """Return weights, moving averages and optimizer state, named after the model's parameters."""
    tensors: Tensors = {}
    for name, parameter in run.model.parameters().items():
        tensors[MODEL_PREFIX + name] = parameter.detach()
        if run.average is not None and name in run.average.tensors:
            tensors[AVERAGE_PREFIX + name] = run.average.tensors[name]
        for slot, value in run.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"{OPTIMIZER_PREFIX}{name}/{slot}"] = value
    return tensors


def _drop_optimizer_state(run: Run, missing: set[str]) -> None:
    """Drop the optimizer state of each parameter for which the checkpoint has none.

    Such a parameter had not received a gradient when the checkpoint was saved. `missing` contains
    the names of tensors that are not in the checkpoint. Raise ValueError if only a part of a
    parameter's state is missing.
    """
    for name, parameter in run.model.parameters().items():
        slots = {
            f"{OPTIMIZER_PREFIX}{name}/{slot}" for slot in run.optimizer.state.get(parameter, ())
        }
        lost = slots & missing
        if lost and lost != slots:
            raise ValueError(f"the checkpoint has no tensor {min(lost)}")
        if lost:
            del run.optimizer.state[parameter]


def _create_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Run a step, so that the optimizer creates the tensors to restore.

    Weight decay may change the weights, which are restored afterwards as well.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _rank_tensors(run: Run) -> Tensors:
    """Return the state that differs between processes: RNG, loss scale, buffers and loss sum."""
    scaler = run.model.scaler.state_dict()
    own = {
        "progress": torch.stack([run.loss_sum.cpu(), torch.tensor(run.samples).double()]),
        "random/cpu": torch.get_rng_state(),
    }
    if run.device.type == "cuda":
        own["random/cuda"] = torch.cuda.get_rng_state(run.device)
    if scaler:
        own["scaler"] = torch.tensor([scaler["scale"], scaler["_growth_tracker"]]).double()
    own |= {f"buffers/{name}": buffer for name, buffer in run.model.saved_buffers().items()}
    return {f"rank-{run.world.rank}/{name}": tensor for name, tensor in own.items()}


def _restore_rank_tensors(run: Run, stored: Tensors, same_size: bool) -> None:
    """Restore this process's state, or rank 0's state if the number of processes has changed.

    If the number has changed, the RNG state is not restored.
    """
    progress = {name: stored[name] for name in stored if name.endswith("/progress")}
    prefix = f"rank-{run.world.rank if same_size else 0}/"
    own = {name.removeprefix(prefix): stored[name] for name in stored if name.startswith(prefix)}
    for name, buffer in run.model.saved_buffers().items():
        buffer.copy_(own[f"buffers/{name}"])
    if "scaler" in own:
        scale, growth = own["scaler"].tolist()
        state = {"scale": scale, "_growth_tracker": int(growth)}
        # Without fp16, the scaler is disabled and ignores the state.
        run.model.scaler.load_state_dict(run.model.scaler.state_dict() | state)
    if same_size:
        torch.set_rng_state(own["random/cpu"])
        if run.device.type == "cuda" and "random/cuda" in own:
            torch.cuda.set_rng_state(own["random/cuda"], run.device)
    elif not run.world.is_rank0:
        return
    if not run.position.seen:
        # The run resumes at the start of an epoch. The saved loss belongs to the previous epoch.
        return
    # If the number of processes has changed, only rank 0 reaches this line, and restores the sum
    # over all previous processes.
    loss_sum, samples = torch.stack(list(progress.values())).sum(0).tolist()
    run.loss_sum.fill_(loss_sum)
    run.samples = int(samples)
