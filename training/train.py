"""A training run from beginning to end: read it downwards."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import TrainingConfig
from training.distributed import Vote, by_leader, gather, joined
from training.evaluation import Judgement, evaluate, losses
from training.export import finished_export, write_export
from training.loader import Loaded, Loader
from training.metrics import Metrics
from training.preflight import await_room
from training.preparation import prepare
from training.sampler import GangSampler
from training.schedule import learning_rate
from training.state import Run, resume, save
from training.watchdog import Watchdog
from training.watching import Watching, done_samples, finite
from training.world import World
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.devices import choose_device
from workload.manifest import Manifest
from workload.models import build
from workload.progress import Finished, Interrupted, Started
from workload.report import conclude, emit

LOOK_EVERY: Final = 100
"""Steps between two looks at whether the loss is a number: to look at every one stalls a GPU."""


def run(config: TrainingConfig, world: World) -> int:
    """Train until done or interrupted, and give the exit code.

    Raises ConfigurationError, DataError, DivergedError, OSError when something cannot be saved,
    and RuntimeError when another process is lost.
    """
    device = choose_device(config.device, world.local_rank)
    await_room(Path(config.run_dir), config.hang_limit)
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
        stop_when_asked(run)
        # Once it is announced, every process can be asked to stop.
        announce(run, resumed=all(gather(resume(run))))
        if not train(run):
            return exit_codes.INTERRUPTED
        run.saver.close()
        manifest = export(run)
        return report_finished(config, world, manifest, already=False)


def stop_when_asked(run: Run) -> None:
    """Save and end at SIGTERM, as Kubernetes sends it, and at the first Ctrl-C."""

    def stop(number: int, _: object) -> None:
        run.stop_asked = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def train(run: Run) -> bool:
    """Train to the end and be True, or save and be False when a process was asked to stop."""
    config, position, world = run.config, run.position, run.world
    sampler = GangSampler(
        run.data.train,
        config.batch_size,
        config.accumulate,
        world.rank,
        world.size,
        config.seed,
    )
    loader = Loader(run.data.train, sampler, run.device, config.loader_workers)
    vote = Vote()
    run.watchdog.beat()
    with Watching(run) as watching:
        for epoch in range(position.epoch, config.epochs):
            started = time.monotonic()
            sampler.set_epoch(epoch, position.seen)
            for batches in run.metrics.timed(steps(loader)):
                step(run, batches, watching)
                if vote.cast(run.stop_asked or run.saver.failed):
                    return interrupt(run)
            finish_epoch(run, started, watching)
    vote.close()
    return True


def steps(loader: Loader) -> Iterator[list[Loaded]]:
    """The batches of one step after another."""
    batches: list[Loaded] = []
    for loaded in loader:
        batches.append(loaded)
        if loaded.batch.last:
            yield batches
            batches = []


def step(run: Run, batches: list[Loaded], watching: Watching) -> None:
    """One step of the optimizer, and what is to be told and saved after it."""
    config, position, seen = run.config, run.position, batches[-1].batch.seen
    rate = learning_rate(config, done_samples(run) / (config.epochs * len(run.data.train)))
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    loss = learn(run, batches)
    run.metrics.stepped(position.step + 1, seen - position.seen, rate)
    position.seen, position.step = seen, position.step + 1
    run.watchdog.beat()
    watching.stepped(loss, rate)
    if position.step % LOOK_EVERY == 0:
        mean_loss(run)
    # After an epoch's last step it is judged first.
    if seen < len(run.data.train) and is_turn(run):
        save(run)
    time.sleep(config.step_delay)


def learn(run: Run, batches: list[Loaded]) -> Tensor:
    """Change the weights a little; gives the mean loss of this process's samples, a scalar."""
    model, scaler = run.model, run.model.scaler
    loss_sum, real = torch.zeros((), device=run.device), 0
    model.train(True)
    run.optimizer.zero_grad()
    for loaded in batches:
        batch = loaded.batch
        with model.exchanging(gradients=batch.last):
            each = losses(model(loaded.inputs), loaded.targets)[: batch.real]
            # The processes' gradients are averaged: so that every sample weighs the same.
            loss = each.sum() * (run.world.size / batch.total)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        loss_sum += each.detach().sum()
        real += batch.real
    norm = None
    # Computed only where somebody may look at it, but then by all processes alike.
    if run.config.metrics_port or run.config.clip_norm:
        scaler.unscale_(run.optimizer)
        norm = model.clip(run.config.clip_norm)
    scale = scaler.get_scale()
    scaler.step(run.optimizer)
    scaler.update()
    if scaler.is_enabled():
        run.metrics.scaled(scaler.get_scale(), skipped=scaler.get_scale() < scale)
    run.loss_sum += loss_sum
    run.samples += real
    mean = loss_sum / max(real, 1)
    run.metrics.computed(mean, norm)
    return mean


def mean_loss(run: Run) -> tuple[float, int]:
    """Of this epoch's samples so far in all processes, and how many these are.

    Raises DivergedError in all of them.
    """
    totals = torch.stack([run.loss_sum, torch.full_like(run.loss_sum, run.samples)])
    dist.all_reduce(totals)
    return finite(float(totals[0] / totals[1]), run), int(totals[1])


def finish_epoch(run: Run, started: float, watching: Watching) -> None:
    """Judge the epoch, report it, and save it when its turn has come."""
    (loss, samples), judgement = mean_loss(run), judge(run)
    run.position.epoch, run.position.seen = run.position.epoch + 1, 0
    run.loss_sum.zero_()
    run.samples = 0
    watching.judged(
        samples,
        loss=loss,
        accuracy=judgement.accuracy,
        held_out_loss=judgement.loss,
        seconds=time.monotonic() - started,
    )
    epoch, epochs = run.position.epoch, run.config.epochs
    if epoch % run.config.checkpoint_every == 0 or epoch == epochs or is_turn(run):
        save(run, judgement.loss)


def is_turn(run: Run) -> bool:
    """Whether a checkpoint is due after this step, wherever in an epoch it is."""
    every = run.config.checkpoint_steps
    return every > 0 and run.position.step % every == 0


def judge(run: Run) -> Judgement:
    """How good the model is now on what it was not trained on."""
    with run.metrics.activities.doing("evaluation"):
        return evaluate(run.model, run.data.held_out, run.world, run.device, run.watchdog)


def interrupt(run: Run) -> bool:
    """Save in the middle of an epoch because a process of the gang got SIGTERM.

    Raises OSError where the last checkpoint could not be written, which interrupts as well.
    """
    mean_loss(run)
    save(run)
    run.saver.close()
    if run.world.leads:
        conclude(Interrupted(epoch=run.position.epoch, step=run.position.step))
    return False


def export_folder(config: TrainingConfig) -> Path:
    """Where a run's finished model is."""
    return Path(config.run_dir) / "export"


def export(run: Run) -> Manifest:
    """Write the finished model with what it achieved, and let all processes know."""
    config, data, judgement = run.config, run.data, judge(run)
    metrics = {
        "accuracy": judgement.accuracy,
        "loss": judgement.loss,
        "seconds": round(run.seconds, 3),
    }
    weights = run.model.weights()

    def write() -> Manifest:
        # A model of its own, whole and on the CPU, whatever the processes have shared.
        model = build(config.model, config.model_options, data.outputs, data.shape)
        model.load_state_dict(weights)
        beat = run.watchdog.beat
        return write_export(export_folder(config), model, config, data, metrics, beat=beat)

    with run.metrics.activities.doing("export"):
        return by_leader(run.world, write, run.saver.group)


def announce(run: Run, resumed: bool) -> None:
    """Say what begins, and from where."""
    if not run.world.leads:
        return
    fields = {
        **run.config.decisive(),
        "run_dir": str(run.folder),
        "device": run.device.type,
        "processes": run.world.size,
        "samples": len(run.data.train),
        "held_out": len(run.data.held_out),
    }
    if resumed:
        fields |= {"done_epochs": run.position.epoch, "step": run.position.step}
    emit(Started.model_validate({"event": "resume" if resumed else "start", **fields}))


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
        result = {
            **manifest.metrics,
            "export": str(export_folder(config)),
            "sha256": manifest.weights.sha256,
            "already": already,
        }
        conclude(Finished.model_validate(result))
    return exit_codes.DONE
