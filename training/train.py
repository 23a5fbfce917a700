"""A training run from beginning to end: read it downwards."""

import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from training import exit_codes
from training.catalog import input_shape
from training.config import ConfigurationError, TrainingConfig
from training.data import Dataset, load
from training.data.samples import Samples
from training.distributed import Vote, all_or_none, by_leader, gather, joined
from training.export import finished_export, write_export
from training.manifest import Manifest
from training.metrics import Metrics
from training.models import build
from training.report import conclude, emit
from training.sampler import GangSampler
from training.state import Position, Run, check_writable, resume, save
from training.watchdog import Watchdog
from training.world import World, choose_device

WARM_UP: Final = 0.2
"""Share of the run in which the learning rate rises to its peak."""

EVALUATION_BATCH: Final = 512


class DivergedError(Exception):
    """The loss is not a number any more: starting again would end in the same."""


def run(config: TrainingConfig, world: World) -> int:
    """Train until done or interrupted, and give the exit code.

    Raises ConfigurationError, DataError, DivergedError, OSError when something cannot be saved,
    and RuntimeError when another process is lost.
    """
    device = choose_device(config.device, world.local_rank)
    with (
        joined(world, device, config.peer_timeout),
        Watchdog(config.hang_limit) as watchdog,
        Metrics(device) as metrics,
    ):
        done = by_leader(world, lambda: finished_export(export_folder(config)))
        if done is not None:
            return report_finished(config, world, done, already=True)
        watchdog.beat()
        run = prepare(config, world, device, watchdog, metrics)
        signal.signal(signal.SIGTERM, lambda *_: setattr(run, "stop_asked", True))
        # Once it is announced, every process can be asked to stop.
        announce(run, resumed=all(gather(resume(run))))
        if not train(run):
            return exit_codes.INTERRUPTED
        manifest = export(run)
        return report_finished(config, world, manifest, already=False)


def prepare(
    config: TrainingConfig,
    world: World,
    device: torch.device,
    watchdog: Watchdog,
    metrics: Metrics,
) -> Run:
    """Find out all that would go wrong later, load the data, build the model."""
    data = all_or_none(lambda: load_data(config, world))
    all_or_none(lambda: metrics.serve(config, world, device))
    watchdog.beat()
    torch.manual_seed(config.seed)
    model = build(config.model, config.model_options, data.outputs, data.shape).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    # From here on dropout differs from process to process.
    torch.manual_seed(config.seed + 2**31 * (world.rank + 1))
    return Run(
        config=config,
        world=world,
        device=device,
        data=data,
        model=model,
        optimizer=optimizer,
        position=Position(),
        loss_sum=torch.zeros((), dtype=torch.float64, device=device),
        samples=0,
        started=time.monotonic(),
        watchdog=watchdog,
        metrics=metrics,
    )


def load_data(config: TrainingConfig, world: World) -> Dataset:
    """Load the data, after the leader has seen that results can be written."""
    if world.leads:
        check_writable(Path(config.run_dir))
    shape = input_shape(config.model, config.model_options)
    return load(config.dataset, Path(config.data_dir), shape, config.seed)


def train(run: Run) -> bool:
    """Train to the end and be True, or save and be False when a process was asked to stop."""
    config, position = run.config, run.position
    model = DistributedDataParallel(run.model)
    sampler = GangSampler(
        len(run.data.train), config.batch_size, run.world.rank, run.world.size, config.seed
    )
    vote = Vote()
    run.watchdog.beat()
    for epoch in range(position.epoch, config.epochs):
        epoch_started = time.monotonic()
        sampler.set_epoch(epoch, position.seen)
        fed = batches(sampler, run.data.train, run.device)
        for images, labels, seen in run.metrics.timed(fed):
            loss = step(run, model, images, labels)
            rate = run.optimizer.param_groups[0]["lr"]
            run.metrics.stepped(position.step + 1, seen - position.seen, rate)
            position.seen, position.step = seen, position.step + 1
            run.watchdog.beat()
            log_step(run, loss)
            time.sleep(config.step_delay)
            if vote.cast(run.stop_asked):
                return interrupt(run)
        finish_epoch(run, epoch_started)
    vote.close()
    return True


def batches(
    sampler: GangSampler, samples: Samples, device: torch.device
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Pixels from 0 to 1, labels, and the samples that all processes have seen with this batch."""
    for batch in sampler:
        inputs, targets = map(torch.from_numpy, samples.batch(batch.indices))
        yield scale(inputs.to(device), samples.white), targets.to(device), batch.seen


def scale(inputs: Tensor, white: int) -> Tensor:
    """Pixels from 0 to 1 from bytes; tokens as they are."""
    return inputs.float() / white if white else inputs


def step(run: Run, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """One step of the optimizer; gives the mean loss of this process's samples."""
    for group in run.optimizer.param_groups:
        group["lr"] = run.config.learning_rate * schedule(progress(run))
    model.train()
    loss = cross_entropy(model(images), labels)
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    # Computed only where somebody may look at it, but then by all processes alike.
    norm = gradient_norm(run.model) if run.config.metrics_port else None
    run.metrics.computed(loss.detach(), norm)
    run.optimizer.step()
    run.loss_sum += loss.detach() * len(labels)
    run.samples += len(labels)
    return loss.detach()


def gradient_norm(model: nn.Module) -> Tensor:
    """The Euclidean norm of all gradients together, a scalar."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return nn.utils.get_total_norm(gradients)


def progress(run: Run) -> float:
    """Share of all samples of all epochs that were seen."""
    count = len(run.data.train)
    return (run.position.epoch * count + run.position.seen) / (run.config.epochs * count)


def schedule(progress: float) -> float:
    """One cycle: up to 1 in a straight line, then down to nearly 0 on a cosine.

    A function of progress alone, so that it needs no state and knows no number of processes.
    """
    if progress < WARM_UP:
        return 0.1 + 0.9 * progress / WARM_UP
    return 0.001 + 0.999 * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP))) / 2


def log_step(run: Run, loss: Tensor) -> None:
    """Write the leader's own loss now and then; to look at it more often would stall a GPU."""
    every = run.config.log_every
    if every and run.position.step % every == 0 and run.world.leads:
        emit("step", step=run.position.step, loss=finite(float(loss), run))


def finish_epoch(run: Run, epoch_started: float) -> None:
    """Judge the epoch, report it, and save it when its turn has come."""
    totals = torch.stack([run.loss_sum, torch.full_like(run.loss_sum, run.samples)])
    dist.all_reduce(totals)
    loss = finite(float(totals[0] / totals[1]), run)
    accuracy = evaluate(run)
    run.position.epoch, run.position.seen = run.position.epoch + 1, 0
    run.loss_sum.zero_()
    run.samples = 0
    epoch, epochs = run.position.epoch, run.config.epochs
    run.metrics.judged(epoch, accuracy)
    if run.world.leads:
        emit(
            "epoch",
            epoch=epoch,
            epochs=epochs,
            loss=round(loss, 6),
            accuracy=round(accuracy, 6),
            seconds=round(time.monotonic() - epoch_started, 3),
        )
    if epoch % run.config.checkpoint_every == 0 or epoch == epochs:
        save(run)


def finite(loss: float, run: Run) -> float:
    """The loss itself. Raises DivergedError when it is infinite or not a number."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss became {loss} in epoch {run.position.epoch + 1}, by step "
            f"{run.position.step}: lower learning_rate (it is {run.config.learning_rate}) "
            "or look for wrong values in the data"
        )
    return loss


@torch.no_grad()
def evaluate(run: Run) -> float:
    """Accuracy on the held-out images, from 0 to 1; the processes share the work."""
    run.model.eval()
    samples = run.data.held_out
    mine = np.arange(run.world.rank, len(samples), run.world.size)
    right = torch.zeros((), dtype=torch.int64, device=run.device)
    for start in range(0, len(mine), EVALUATION_BATCH):
        inputs, targets = map(
            torch.from_numpy, samples.batch(mine[start : start + EVALUATION_BATCH])
        )
        logits = run.model(scale(inputs.to(run.device), samples.white))
        right += (logits.argmax(1) == targets.to(run.device)).sum()
        run.watchdog.beat()
    dist.all_reduce(right)
    return int(right) / len(samples)


def interrupt(run: Run) -> bool:
    """Save in the middle of an epoch because a process of the gang got SIGTERM."""
    finite(float(run.loss_sum), run)
    save(run)
    if run.world.leads:
        conclude("interrupted", epoch=run.position.epoch, step=run.position.step)
    return False


def export_folder(config: TrainingConfig) -> Path:
    """Where a run's finished model is."""
    return Path(config.run_dir) / "export"


def export(run: Run) -> Manifest:
    """Write the finished model with what it achieved, and let all processes know."""
    metrics = {"accuracy": evaluate(run), "seconds": round(run.seconds, 3)}
    folder = export_folder(run.config)
    return by_leader(
        run.world, lambda: write_export(folder, run.model, run.config, run.data, metrics)
    )


def announce(run: Run, resumed: bool) -> None:
    """Say what begins, and from where."""
    if not run.world.leads:
        return
    emit(
        "resume" if resumed else "start",
        **run.config.decisive(),
        run_dir=str(run.folder),
        device=run.device.type,
        processes=run.world.size,
        samples=len(run.data.train),
        held_out=len(run.data.held_out),
        **({"done_epochs": run.position.epoch, "step": run.position.step} if resumed else {}),
    )


def report_finished(config: TrainingConfig, world: World, manifest: Manifest, already: bool) -> int:
    """Say what the run achieved. Raises ConfigurationError when it was another run that did."""
    differences = [
        f"{name} {manifest.settings.get(name)} instead of {value}"
        for name, value in config.decisive().items()
        if manifest.settings.get(name) != value
    ]
    if differences:
        raise ConfigurationError(
            f"{config.run_dir} holds a finished run with {', '.join(differences)}: "
            "choose another run_dir"
        )
    if world.leads:
        conclude(
            "finished",
            **manifest.metrics,
            export=str(export_folder(config)),
            sha256=manifest.weights.sha256,
            already=already,
        )
    return exit_codes.DONE
