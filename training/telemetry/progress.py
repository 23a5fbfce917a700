"""Progress outputs of a run: terminal bar, JSON log, metrics, TensorBoard and traces."""

import contextlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import torch
from torch import Tensor
from torch.profiler import profile, schedule

from training.accelerator import peak_flops
from training.objective import Evaluation
from training.run import Run
from workload.configuration import ConfigurationError
from workload.progress import PROGRESS_FILE, Epoch, Evaluated, Step
from workload.report import Bar, emit

LOSSES_PER_COPY: Final = 100
"""Number of losses per copy from the device. Each copy stalls the device, so losses are batched."""


class EventFiles(contextlib.ExitStack):
    """Event files of a run.

    `step` is the number of steps that the run has completed when this process starts. If a killed
    process has written events for later steps, TensorBoard hides them. Raise ConfigurationError if
    tensorboard is not installed.
    """

    def __init__(self, directory: Path, step: int = 0) -> None:
        super().__init__()
        try:
            # Imported here, because the import takes seconds.
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigurationError(
                f"tensorboard is set, but the package cannot be imported ({error}): "
                "install tensorboard in the image, or leave the setting out"
            ) from None
        self._pending: list[tuple[int, Tensor]] = []
        self._writer = SummaryWriter(str(directory), purge_step=step + 1)
        self.callback(self._writer.close)
        self.callback(self.flush)

    def stepped(self, step: int, loss: Tensor, learning_rate: float) -> None:
        """Record the loss (a scalar on any device) and learning rate of a step."""
        self._writer.add_scalar("learning_rate", learning_rate, step)
        self._pending.append((step, loss.detach()))
        if len(self._pending) == LOSSES_PER_COPY:
            self.flush()

    def add_scalars(self, step: int, **values: float) -> None:
        """Record values under their names, such as accuracy after an epoch, and flush."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self.flush()

    def flush(self) -> None:
        """Write everything to disk. Raise OSError on failure."""
        pending, self._pending = self._pending, []
        losses = torch.stack([loss for _, loss in pending]).tolist() if pending else []
        for (step, _), loss in zip(pending, losses, strict=True):
            self._writer.add_scalar("loss", loss, step)
        self._writer.flush()


class Tracer:
    """Profiler that skips the first `after` steps of this process and then records `steps` steps.

    If `steps` is 0, it is disabled. `before` is the number of steps that the run has completed when
    this process starts. After the last profiled step, or at exit, the trace is written to
    `directory`/rank-<rank>-step-<first>.json.gz. Raise OSError if it cannot be written.
    """

    _profile: profile | None = None

    def __init__(self, directory: Path, rank: int, steps: int, after: int, before: int) -> None:
        self._target = directory / f"rank-{rank}-step-{before + after + 1:08d}.json.gz"
        self._left = after + steps
        if steps:
            # The step before the profiled ones is a warm-up, which absorbs the profiler's startup.
            skipped = {"skip_first": after - 1, "wait": 0, "warmup": 1}
            plan = schedule(**skipped, active=steps, repeat=1) if after else None
            self._profile = profile(schedule=plan, on_trace_ready=self._write, record_shapes=True)

    def __enter__(self) -> Self:
        if self._profile is not None:
            self._profile.start()
        return self

    def stepped(self) -> None:
        """Record an optimizer step."""
        self._left -= 1
        if self._left <= 0:
            self.__exit__()
        elif self._profile is not None:
            self._profile.step()

    def __exit__(self, *_: object) -> None:
        # If the trace cannot be written, a second attempt could crash the process.
        stopped, self._profile = self._profile, None
        if stopped is not None:
            stopped.stop()

    def _write(self, done: profile) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._target.with_name(f".{self._target.name}")
        done.export_chrome_trace(str(unfinished))
        unfinished.replace(self._target)


class ProgressOutputs(contextlib.ExitStack):
    """Outputs that report the steps and epochs of a run, starting at its current position.

    Raise ConfigurationError if a required package is not installed, and OSError if a trace or event
    file cannot be written.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, config, position = run, run.config, run.position
        self._log_every = config.log_every if run.world.is_rank0 else 0
        self._bar = Bar(
            total=run.length.total(position),
            done=run.length.done(position),
            shown=run.world.is_rank0,
        )
        self._files: EventFiles | None = None
        if config.tensorboard and run.world.is_rank0:
            self._files = EventFiles(run.directory / "tensorboard", step=position.step)
        directory, steps = run.directory / "profile", config.profile_steps
        self._tracer = Tracer(
            directory, run.world.rank, steps, config.profile_after, before=position.step
        )

    def __enter__(self) -> Self:
        for output in (self._bar, self._files, self._tracer):
            if output is not None:
                self.enter_context(output)
        self._throughput = Throughput(self._run)
        return self

    def stepped(self, loss: Tensor, norm: Tensor, rate: float) -> None:
        """Report a step.

        `loss` is the mean loss of this process's samples, `norm` the gradient norm, and `rate` the
        learning rate.
        """
        run, position = self._run, self._run.position
        step, done = position.step, run.length.done(position)
        self._bar.advance(done, step, loss)
        if self._files is not None:
            self._files.stepped(step, loss, rate)
        self._tracer.stepped()
        # Reading the loss stalls a GPU, so it is read only when it is logged.
        if self._log_every and step % self._log_every == 0:
            value = float(loss)
            if not math.isfinite(value):
                # All processes raise DivergedError after the vote.
                run.give_up = True
                return
            # Every line includes the epochs, so that the end of a long log shows the progress.
            line = {"step": step, "loss": value, **self._epochs("done_epochs")}
            line["learning_rate"] = rate
            # JSON has no infinity. With fp16, a step with an infinite gradient is skipped.
            if norm.isfinite():
                line["gradient_norm"] = float(norm)
            emit(Step.model_validate(line | self._throughput.since_last(done)))

    def evaluated(
        self, evaluation: Evaluation, seconds: float, epoch: tuple[float, int, float] | None = None
    ) -> None:
        """Report an evaluation, which took `seconds`.

        `epoch` is the mean loss, the sample count and the start time of a finished epoch. Loss and
        count cover the whole epoch, even if it was interrupted and resumed; the start time is
        when this process began or resumed the epoch.
        """
        self._throughput.exclude(seconds)
        position, metrics = self._run.position, evaluation.metrics
        values = {"accuracy": evaluation.accuracy, "held_out_loss": evaluation.loss}
        if epoch is not None:
            values |= {"loss": epoch[0], "seconds": time.monotonic() - epoch[2]}
        if self._files is not None:
            self._files.add_scalars(position.step, **values, **metrics)
        self._run.metrics.evaluated(position.epoch, evaluation)
        if not self._run.world.is_rank0:
            return
        line: dict[str, object] = {
            "step": position.step,
            **_rounded({"seconds": seconds, **values}),
        }
        if metrics:
            line["metrics"] = _rounded(metrics)
        event: Epoch | Evaluated
        if epoch is not None:
            event = Epoch.model_validate({**self._epochs("epoch"), "samples": epoch[1], **line})
        else:
            counts = {**self._epochs("done_epochs"), "samples": evaluation.samples}
            event = Evaluated.model_validate({**counts, **line})
        written = emit(event)
        # A file next to the checkpoints outlives the pod.
        with (self._run.directory / PROGRESS_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{written}\n")

    def _epochs(self, name: str) -> dict[str, int | float]:
        """Return the completed epochs under the key `name`, and the run's total under `epochs`."""
        length, position = self._run.length, self._run.position
        done, total = length.done(position), length.total(position)
        return {name: length.epochs(done), "epochs": length.epochs(total)}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


class Throughput:
    """Samples, tokens and model FLOPs per second between two progress lines."""

    def __init__(self, run: Run) -> None:
        self._run, self._peak = run, peak_flops(run.device)
        self._tokens = 0 if run.data.train.divisor else math.prod(run.data.shape)
        self._last = (time.perf_counter(), run.length.done(run.position))

    def exclude(self, seconds: float) -> None:
        """Exclude the time of an evaluation."""
        then, before = self._last
        self._last = (then + seconds, before)

    def since_last(self, done: int) -> dict[str, float]:
        """Return the values since the previous call. Synchronize the device first."""
        now, (then, before) = time.perf_counter(), self._last
        self._last = (now, done)
        rate = (done - before) / max(now - then, 1e-9)
        values: dict[str, float] = {"samples_per_second": round(rate, 3)}
        if self._tokens:
            values["tokens_per_second"] = round(rate * self._tokens, 1)
        if self._peak and (flops := self._run.flops_per_sample):
            values["mfu"] = round(rate * flops / (self._peak * self._run.world.size), 4)
        if self._run.device.type == "cuda":
            values["memory_bytes"] = torch.cuda.max_memory_allocated(self._run.device)
        return values
