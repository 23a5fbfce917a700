"""A training run from start to finish."""

import os
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from training import accelerator
from training.checkpoints.state import resume, save, save_evaluation
from training.config import TrainingConfig
from training.data.loader import GangSampler, LoadedBatch, Loader
from training.evaluation import evaluate_held_out
from training.export import finished_export, missing_results, write_export
from training.gang.distributed import await_rank0, gather, joined
from training.gang.measurements import check_gang
from training.gang.preflight import await_free_space, warn_about_locked_memory
from training.gang.world import World
from training.lora import ADAPTER_DIRECTORY, Lora, adapt, merge, write_adapter
from training.objective import Evaluation
from training.optimizer import learning_rate
from training.preparation import open_mirror, prepare
from training.run import DivergedError, Run, mean_loss
from training.telemetry.metrics import Metrics
from training.telemetry.progress import ProgressOutputs
from training.warm_start import Report, load_initial_weights
from workload import exit_codes
from workload.catalog import equal_options
from workload.configuration import ConfigurationError
from workload.devices import choose_device
from workload.files import create_unfinished, publish_folder, sync_files
from workload.manifest import ExportError, Manifest, read_manifest
from workload.models import build
from workload.models.gpt import Gpt
from workload.progress import Finished, Interrupted, Started
from workload.report import conclude, emit
from workload.run import Watchdog, long_timeout_group, on_rank0
from workload.tracking import track

CHECK_LOSS_EVERY: Final = 100
"""Number of steps between checks that the loss is finite. Each check stalls the GPU."""


def run(config: TrainingConfig, world: World) -> int:
    """Train until the run is finished or interrupted, and return the exit code."""
    device = choose_device(config.device, world.local_rank)
    accelerator.configure(device)
    if writes_to_disk(config):
        await_free_space(Path(config.run_dir), config.hang_limit)
    warn_about_locked_memory(os.environ)
    with (
        joined(world, device, config.start_timeout),
        Watchdog(config.hang_limit) as watchdog,
        Metrics(device) as metrics,
    ):
        finished = on_rank0(lambda: finished_export(export_directory(config)))
        if finished is not None and not must_run_again(config, finished):
            if (mirror := open_mirror(config)) is not None:
                # The previous process may have exited after it wrote the export and before it
                # copied the export to the object store.
                beat = watchdog.beat
                await_rank0(lambda: mirror.copy_export(beat), long_timeout_group(), beat)
            return report_finished(config, world, finished, already=True)
        on_rank0(lambda: track(Path(config.run_dir), config.track))
        check_gang(config, world, device, watchdog.beat)
        watchdog.beat()
        run = prepare(config, world, device, watchdog, metrics)
        run.vote.listen()
        # `gather` is also a barrier: all processes listen for signals before the start is reported.
        resumed = all(gather(resume(run)))
        if finished is not None and not resumed:
            missing = missing_results(config, finished)
            lacks = "".join(f"without the result of {each}, and " for each in missing)
            raise ConfigurationError(
                f"{config.run_dir} contains a finished run {lacks}without a checkpoint to continue "
                "from: choose another run_dir, and set init_from to this directory"
            )
        run.length.check(run.position, config)
        warm = load_initial_weights(run) if config.init_from and not resumed else None
        announce(run, resumed, warm)
        try:
            evaluation = evaluate_held_out(run) if train(run) else None
            if evaluation is None:
                interrupt(run)
                return exit_codes.INTERRUPTED
        except DivergedError:
            # All processes raise this error together. The last checkpoint is valid but may not be
            # fully written yet, so wait for it.
            run.saver.close(run.watchdog.beat)
            raise
        run.saver.close(run.watchdog.beat)
        run.vote.result()
        manifest = export(run, evaluation)
        return report_finished(config, world, manifest, already=False)


def train(run: Run) -> bool:
    """Train to the end and return True, or return False if a process voted to stop."""
    config, position, world = run.config, run.position, run.world
    sampler = GangSampler(
        run.data.train, config.batch_size, config.accumulate, world.rank, world.size, config.seed
    )
    loader = Loader(run.data.train, sampler, run.device, config.loader_workers)
    run.watchdog.beat()
    starting = True
    with ProgressOutputs(run) as outputs:
        # The previous process may have exited after the checkpoint but before the evaluation.
        missed = run.unevaluated and is_due(run, config.evaluate_steps)
        within_epoch = position.seen < run.length.end(position)
        if missed and within_epoch and not evaluate_now(run, outputs):
            return False
        # If the run resumes after its last step, its last epoch may still have to be evaluated.
        while position.seen or not run.length.is_reached(position):
            started = time.monotonic()
            sampler.set_epoch(position.epoch, position.seen, run.length.end(position))
            for batches in run.metrics.timed(steps(loader)):
                if not step(run, batches, outputs) or run.should_stop():
                    return False
                if starting:
                    # The first step may compile the model; later steps are short.
                    dist.set_timeout(timedelta(seconds=config.peer_timeout))
                    starting = False
            if not finish_epoch(run, started, outputs):
                return False
            if run.length.is_reached(position):
                break
    return True


def steps(loader: Loader) -> Iterator[list[LoadedBatch]]:
    """Yield the batches of each step."""
    batches: list[LoadedBatch] = []
    for loaded in loader:
        batches.append(loaded)
        if loaded.batch.last:
            yield batches
            batches = []


def step(run: Run, batches: list[LoadedBatch], outputs: ProgressOutputs) -> bool:
    """Run an optimizer step; report, save and evaluate if due.

    Return False if a process voted to stop.
    """
    config, position, seen = run.config, run.position, batches[-1].batch.seen
    rate = learning_rate(config, run.length.progress(position))
    end = run.length.end(position)
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    run.evaluation = None
    loss, norm = learn(run, batches)
    run.metrics.stepped(position.step + 1, seen - position.seen, rate)
    position.seen, position.step = seen, position.step + 1
    if run.average is not None:
        run.average.update(position.step)
    run.watchdog.beat()
    outputs.stepped(loss, norm, rate)
    if position.step % CHECK_LOSS_EVERY == 0:
        mean_loss(run)
    # After the last step of an epoch or of the run, `finish_epoch` saves and evaluates.
    if seen < end and is_due(run, config.checkpoint_steps):
        save(run)
    if config.step_delay:
        # Even a sleep of 0 s yields the core.
        time.sleep(config.step_delay)
    if seen < end and is_due(run, config.evaluate_steps):
        return evaluate_now(run, outputs)
    return True


def learn(run: Run, batches: list[LoadedBatch]) -> tuple[Tensor, Tensor]:
    """Update the weights; return the mean loss of this process's samples and the gradient norm.

    Both are scalars on the device. The norm is the global norm before clipping.
    """
    model, scaler = run.model, run.model.scaler
    loss_sum, real = torch.zeros((), device=run.device), 0
    model.train(True)
    run.optimizer.zero_grad()
    for loaded in batches:
        batch = loaded.batch
        model.synchronize_gradients(enabled=batch.last)
        loss = run.objective.loss(model(loaded.inputs), loaded.targets)[: batch.real].sum()
        loss_sum += loss.detach()
        # DDP and FSDP average over processes; this factor gives every sample the same weight.
        loss = loss * (run.world.size / batch.total)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        real += batch.real
    scaler.unscale_(run.optimizer)
    norm = model.clip(run.config.clip_norm)
    run.check_step(loss_sum, norm)
    scale = scaler.get_scale()
    scaler.step(run.optimizer)
    scaler.update()
    if scaler.is_enabled():
        run.metrics.scaled(scaler.get_scale(), skipped=scaler.get_scale() < scale)
    run.loss_sum += loss_sum
    run.samples += real
    run.metrics.loss, run.metrics.norm = loss_sum / max(real, 1), norm
    return run.metrics.loss, norm


def finish_epoch(run: Run, started: float, outputs: ProgressOutputs) -> bool:
    """Save if due, evaluate and report at the end of an epoch or of the run.

    Return False if a process voted to stop.
    """
    (loss, samples), position = mean_loss(run), run.position
    reached = run.length.is_reached(position)
    every, steps = run.config.checkpoint_every, run.config.checkpoint_steps
    if reached or (position.epoch + 1) % every == 0 or is_due(run, steps):
        # Save before the evaluation, which may take a long time, be interrupted or fail.
        save(run)
    return evaluate_now(run, outputs, (loss, samples, started))


def evaluate_now(
    run: Run, outputs: ProgressOutputs, epoch: tuple[float, int, float] | None = None
) -> bool:
    """Evaluate the weights and report the result; return False if a process voted to stop.

    `epoch` contains the mean loss, number of samples and start time of the epoch. It is None unless
    this evaluation ends an epoch or the run.
    """
    before = time.monotonic()
    evaluation, position = evaluate_held_out(run, run.config.evaluate_samples), run.position
    if evaluation is None:
        return False
    if position.seen == run.length.epoch_samples:
        position.epoch, position.seen = position.epoch + 1, 0
        run.loss_sum.zero_()
        run.samples = 0
    outputs.evaluated(evaluation, time.monotonic() - before, epoch)
    save_evaluation(run, evaluation.loss)
    return True


def is_due(run: Run, every: int) -> bool:
    """Return whether an action that runs every `every` steps is due after this step."""
    return every > 0 and run.position.step % every == 0


def interrupt(run: Run) -> None:
    """Save the run after a process of the gang received SIGTERM or could not continue.

    Raise OSError if the last checkpoint could not be written, and DivergedError if a loss, gradient
    or weight is not finite.
    """
    save(run)
    run.saver.close(run.watchdog.beat)
    if run.world.is_rank0:
        conclude(Interrupted(epoch=run.position.epoch, step=run.position.step))


def export_directory(config: TrainingConfig) -> Path:
    """Return the directory of the run's export."""
    return Path(config.run_dir) / "export"


def export(run: Run, evaluation: Evaluation) -> Manifest:
    """Write the finished model and its metrics; return the manifest in all processes."""
    config, data = run.config, run.data
    metrics = {
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "seconds": round(run.seconds, 3),
        **evaluation.metrics,
    }

    def write(weights: dict[str, Tensor]) -> Manifest:
        # Load the weights into a new unsharded model on the CPU.
        model = build(config.model, config.model_options, data.outputs, data.shape)
        beat, directory = run.watchdog.beat, create_unfinished(export_directory(config))
        lora = Lora.of(config)
        try:
            if lora is None or not isinstance(model, Gpt):
                model.load_state_dict(weights)
            else:
                adapt(model, lora)
                model.load_state_dict(weights)
                base = Path(str(config.init_from))
                write_adapter(directory / ADAPTER_DIRECTORY, model, lora, base)
                merge(model)
            manifest = write_export(directory, model, config, data, metrics, beat=beat)
            sync_files(directory)
            # An existing export remains in use until this one is complete.
            publish_folder(directory)
        finally:
            # After an error, free the space, because the volume may be full.
            shutil.rmtree(directory, ignore_errors=True)
        if run.saver.mirror is not None:
            run.saver.mirror.copy_export(beat)
        return manifest

    with run.metrics.activities.doing("export"), run.result_weights():
        weights = run.model.weights()
        return await_rank0(lambda: write(weights), run.saver.group, run.watchdog.beat)


def announce(run: Run, resumed: bool, warm: Report | None) -> None:
    """Report the start or the resumption of the run, and the weights that it starts with."""
    if not run.world.is_rank0:
        return
    fields: dict[str, Any] = {
        **run.config.result_settings(),
        "run_dir": str(run.directory),
        "device": run.device.type,
        "processes": run.world.size,
        "epochs": run.length.epochs(run.length.total(run.position)),
        "samples": len(run.data.train),
        "held_out": len(run.data.held_out),
        **accelerator.chosen_defaults(run.config, run.device, run.model.model),
    }
    if warm:
        fields["initial_weights"] = warm
    if resumed:
        done = run.length.epochs(run.length.done(run.position))
        fields |= {"done_epochs": done, "step": run.position.step}
    emit(Started.model_validate({"event": "resume" if resumed else "start", **fields}))


def differences(config: TrainingConfig, manifest: Manifest) -> dict[str, str]:
    """Return the settings that differ between a finished run and the configuration."""
    before, now = manifest.settings, config.result_settings()
    known = [name for name in before if name in type(config).model_fields]
    found = {
        name: f"{name}: {before.get(name, 'none')}, now {now.get(name, 'none')}"
        for name in dict.fromkeys([*now, *known])
        if before.get(name) != now.get(name)
    }
    if equal_options(config.model, manifest.options, config.model_options):
        found.pop("model_options", None)
    default = type(config).model_fields["lora_targets"].default
    targets = str(before.get("lora_targets", ",".join(default))).split(",")
    if set(targets) == set(config.lora_targets):
        found.pop("lora_targets", None)
    return found


def must_run_again(config: TrainingConfig, manifest: Manifest) -> bool:
    """Return whether a finished run has to continue training, or has to be exported again.

    Training continues if the configured length has increased. If only requested artifacts or
    metrics are missing from the export, the run is evaluated and exported again.
    """
    found, (name, value) = differences(config, manifest), config.length
    if found:
        return [*found] == [name] and value > int(manifest.settings[name])
    return bool(missing_results(config, manifest))


def writes_to_disk(config: TrainingConfig) -> bool:
    """Return whether this attempt has to train or export. Damaged weights are not detected."""
    try:
        return must_run_again(config, read_manifest(export_directory(config)))
    except ExportError:
        return True


def report_finished(config: TrainingConfig, world: World, manifest: Manifest, already: bool) -> int:
    """Report the result of a finished run, and return the exit code.

    `already` is True if the run had finished before this attempt. Raise ConfigurationError if the
    run was configured differently.
    """
    found = differences(config, manifest)
    if found:
        raise ConfigurationError(
            f"{config.run_dir} contains a finished run with different settings "
            f"({'; '.join(found.values())}): choose another run_dir"
        )
    if world.is_rank0:
        result = {
            **manifest.metrics,
            "export": str(export_directory(config)),
            "sha256": manifest.weights.sha256,
            "already": already,
        }
        conclude(Finished.model_validate(result))
    return exit_codes.DONE
