"""Prometheus metrics of a run, served by the first process of every node."""

import contextlib
import math
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, Literal, TypeVar, get_args

import torch
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from training.config import TrainingConfig
from training.gang.preflight import SHARED_MEMORY
from training.gang.world import World
from training.objective import Evaluation
from workload.configuration import ConfigurationError

Activity = Literal["start", "data", "step", "checkpoint", "evaluation", "export", "other"]


class Activities(Collector):
    """Time (s) by activity. Exactly one activity is current, so the sum is the total time.

    The times are stored as plain floats, because `switch` is called several times per step. They
    become counters only when they are scraped.
    """

    def __init__(self) -> None:
        self._seconds: dict[Activity, float] = dict.fromkeys(get_args(Activity), 0.0)
        self._current: Activity = "start"
        self._since = time.perf_counter()

    def switch(self, activity: Activity) -> Activity:
        """Switch to another activity; return the previous one."""
        now, before = time.perf_counter(), self._current
        self._seconds[before] += now - self._since
        self._current, self._since = activity, now
        return before

    @contextlib.contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        """Attribute the time within the context to `activity`."""
        previous = self.switch(activity)
        try:
            yield
        finally:
            self.switch(previous)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the counters, including the time of the current activity so far."""
        family = CounterMetricFamily(
            "training_seconds",
            "Time of this process by activity; the sum over activities is the process's lifetime",
            labels=["activity"],
        )
        current, since = self._current, self._since
        for activity, seconds in self._seconds.copy().items():
            more = time.perf_counter() - since if activity == current else 0.0
            family.add_metric([activity], seconds + more)
        return [family]


T = TypeVar("T")

DURATION_BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics(contextlib.ExitStack):
    """Metrics of one process. They are always updated, but served only after a call to `serve`.

    Loss and gradient norm stay on the device until they are scraped, because copying them at every
    step would stall a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._total_samples = 0
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, namespace="training", registry=registry)
        gauge = partial(Gauge, namespace="training", registry=registry)
        histogram = partial(
            Histogram, namespace="training", buckets=DURATION_BUCKETS, registry=registry
        )
        self._samples = counter("samples", "Samples over all ranks since this process started")
        self._rate = gauge("samples_per_second", "Throughput over all ranks in the last step")
        self._step_seconds = histogram(
            "step_seconds", "Time from the request for a batch to the end of its step"
        )
        self._data_wait = histogram(
            "data_wait_seconds", "Part of a step spent waiting for its batch"
        )
        self.checkpoint_seconds = histogram(
            "checkpoint_seconds", "Time for which a checkpoint pauses training"
        )
        self._write_seconds = histogram(
            "checkpoint_write_seconds",
            "Time from the start of a checkpoint until it is complete on disk",
        )
        self._saved_step = gauge("checkpoint_step", "Step of the newest complete checkpoint")
        self.activities = Activities()
        registry.register(self.activities)
        # Report the usage of shared memory, because processes are killed by SIGBUS when it is full.
        if SHARED_MEMORY.is_dir():
            size = gauge("shm_size_bytes", "Size of shared memory")
            size.set_function(lambda: shutil.disk_usage(SHARED_MEMORY).total)
            used = gauge("shm_used_bytes", "Used shared memory")
            used.set_function(lambda: shutil.disk_usage(SHARED_MEMORY).used)
        self._skipped = counter(
            "skipped_steps",
            "Steps skipped because a gradient was not finite, which happens occasionally with fp16",
        )
        self._scale = gauge("loss_scale", "fp16 loss scale in the last step; 1 without fp16")
        self._scale.set(1)
        self._epoch = gauge("epoch", "Completed epochs")
        self._step = gauge("step", "Completed steps")
        self._accuracy = gauge("accuracy", "Accuracy on held-out data in the last evaluation")
        self._held_out_loss = gauge("held_out_loss", "Loss on held-out data in the last evaluation")
        self._custom = gauge(
            "custom_metric",
            "Custom metric on held-out data in the last evaluation, by name",
            ["metric"],
        )
        self._learning_rate = gauge("learning_rate", "Learning rate of the last step")
        # Latest scalars on any device, which are copied only when they are scraped.
        self.loss = self.norm = torch.tensor(torch.nan)
        loss = gauge("loss", "Loss of this process's samples in the last step")
        loss.set_function(lambda: float(self.loss))
        norm = gauge("gradient_norm", "Global gradient norm before clipping in the last step")
        norm.set_function(lambda: float(self.norm))
        names = ["run", "model", "dataset", "device", "rank", "processes"]
        self._info = gauge("info", "Information about the run, as labels; always 1", names)
        if device.type == "cuda":
            memory = gauge("gpu_memory_bytes", "Memory that PyTorch has reserved on this GPU")
            memory.set_function(lambda: torch.cuda.memory_reserved(device))
            # This metric requires nvidia-ml-py and a GPU without MIG; otherwise, it is omitted.
            if not math.isnan(_utilization(device)):
                busy = gauge(
                    "gpu_utilization",
                    "Fraction of the last sample period (at most 1 s) in which this GPU was busy",
                )
                busy.set_function(lambda: _utilization(device))

    def serve(self, config: TrainingConfig, world: World, device: torch.device) -> None:
        """Serve the metrics on `metrics_port` until exit, only in the first process of a node."""
        if not config.metrics_port or world.local_rank:
            return
        try:
            server, thread = start_http_server(config.metrics_port, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics_port {config.metrics_port} is not available: {error.strerror}; "
                "set another port, or 0 to disable it"
            ) from None
        self.callback(thread.join)
        self.callback(server.server_close)
        self.callback(server.shutdown)
        labels = (config.run_dir.name, config.model, config.dataset, device.type)
        self._info.labels(*labels, world.rank, world.size).set(1)

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and record the wait for each and the duration of its step."""
        source, switch = iter(batches), self.activities.switch
        while True:
            started = time.perf_counter()
            switch("data")
            try:
                batch = next(source)
            except StopIteration:
                switch("other")
                return
            self._data_wait.observe(time.perf_counter() - started)
            seen = self._total_samples
            switch("step")
            yield batch
            seconds = time.perf_counter() - started
            self._step_seconds.observe(seconds)
            self._rate.set((self._total_samples - seen) / seconds)

    def resumed(self, epochs: int, step: int) -> None:
        """Record that the run resumes from a checkpoint after `epochs` epochs and `step` steps."""
        self._epoch.set(epochs)
        self._step.set(step)
        self._saved_step.set(step)

    def stepped(self, step: int, samples: int, learning_rate: float) -> None:
        """Record a step; `samples` is the number over all processes."""
        self._step.set(step)
        self._learning_rate.set(learning_rate)
        self._total_samples += samples
        self._samples.inc(samples)

    def scaled(self, scale: float, skipped: bool) -> None:
        """Record the fp16 loss scale after a step, and whether the step was skipped."""
        self._scale.set(scale)
        self._skipped.inc(skipped)

    def saved(self, step: int, seconds: float) -> None:
        """Record a complete checkpoint of `step`, written `seconds` after training paused for it.

        This may be called from any thread.
        """
        self._write_seconds.observe(seconds)
        self._saved_step.set(step)

    def evaluated(self, epoch: int, evaluation: Evaluation) -> None:
        """Record the completed epochs and an evaluation."""
        for name, value in evaluation.metrics.items():
            self._custom.labels(name).set(value)
        self._epoch.set(epoch)
        self._accuracy.set(evaluation.accuracy)
        self._held_out_loss.set(evaluation.loss)


def _utilization(device: torch.device) -> float:
    """Return the GPU utilization from 0 to 1; NaN if it is not available."""
    with contextlib.suppress(Exception):
        return torch.cuda.utilization(device) / 100
    return math.nan
