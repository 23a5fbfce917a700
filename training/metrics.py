"""What Prometheus can ask a run, on the first process of every node."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator
from typing import Final, Self, TypeVar

import torch
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from torch import Tensor

from training.activities import Activities
from training.config import TrainingConfig
from training.shared_memory import SharedMemory
from training.world import World
from workload.configuration import ConfigurationError

T = TypeVar("T")

SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics(contextlib.ExitStack):
    """The numbers of one process; they are kept always, and served where `serve` was called.

    Loss and gradient norm stay on the device until somebody asks: to fetch them at every step
    would stall a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._total = 0
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._samples = Counter(
            "training_samples",
            "Samples that all processes together have trained on since this one started",
            registry=registry,
        )
        self._rate = Gauge(
            "training_samples_per_second",
            "Of all processes together, in the latest step",
            registry=registry,
        )
        self._step_seconds = Histogram(
            "training_step_seconds",
            "From the request for a batch to the end of its step",
            buckets=SECONDS,
            registry=registry,
        )
        self._data_wait = Histogram(
            "training_data_wait_seconds",
            "The part of a step in which its batch was waited for",
            buckets=SECONDS,
            registry=registry,
        )
        self.checkpoint_seconds = Histogram(
            "training_checkpoint_seconds",
            "The pause that saving a checkpoint makes",
            buckets=SECONDS,
            registry=registry,
        )
        self._write_seconds = Histogram(
            "training_checkpoint_write_seconds",
            "From the beginning of a checkpoint's pause until it is complete on the disk",
            buckets=SECONDS,
            registry=registry,
        )
        self._saved_step = Gauge(
            "training_checkpoint_step", "Steps in the newest complete checkpoint", registry=registry
        )
        self.activities = Activities()
        registry.register(self.activities)
        registry.register(SharedMemory())
        self._skipped = Counter(
            "training_skipped_steps",
            "Steps left out since a gradient was not finite, as happens now and then with fp16",
            registry=registry,
        )
        self._scale = Gauge(
            "training_loss_scale", "Of fp16, in the latest step; 1 without it", registry=registry
        )
        self._scale.set(1)
        self._epoch = Gauge("training_epoch", "Epochs that are done", registry=registry)
        self._step = Gauge("training_step", "Steps that are done", registry=registry)
        self._accuracy = Gauge(
            "training_accuracy", "On held-out data, after the latest epoch", registry=registry
        )
        self._held_out_loss = Gauge(
            "training_held_out_loss", "On held-out data, after the latest epoch", registry=registry
        )
        self._learning_rate = Gauge(
            "training_learning_rate", "Of the latest step", registry=registry
        )
        self._loss = self._latest("training_loss", "Of this process's samples in the latest step")
        self._norm = self._latest(
            "training_gradient_norm", "Of all gradients together in the latest step, not clipped"
        )
        self._info = Gauge(
            "training_info",
            "What is trained by whom; always 1",
            ["run", "model", "dataset", "device", "rank", "processes"],
            registry=registry,
        )
        if device.type == "cuda":
            _tell_of_gpu(registry, device)

    def __enter__(self) -> Self:
        return self

    def serve(self, config: TrainingConfig, world: World, device: torch.device) -> None:
        """Answer at `metrics_port` from now until this is left, on a node's first process only.

        Raises ConfigurationError when the port cannot be had.
        """
        if not config.metrics_port or world.local_rank:
            return
        try:
            server, thread = start_http_server(config.metrics_port, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"metrics_port {config.metrics_port} cannot be had: {error.strerror}; "
                "write another, or 0 for none"
            ) from None
        self.callback(thread.join)
        self.callback(server.server_close)
        self.callback(server.shutdown)
        labels = (config.run_dir.name, config.model, config.dataset, device.type)
        self._info.labels(*labels, world.rank, world.size).set(1)

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches; how long each was waited for, and how long its step took."""
        source, switch = iter(batches), self.activities.switch
        while True:
            begun = time.perf_counter()
            switch("data")
            try:
                batch = next(source)
            except StopIteration:
                switch("other")
                return
            self._data_wait.observe(time.perf_counter() - begun)
            seen = self._total
            switch("step")
            yield batch
            seconds = time.perf_counter() - begun
            self._step_seconds.observe(seconds)
            self._rate.set((self._total - seen) / seconds)

    def resumed(self, epochs: int, step: int) -> None:
        """The run goes on from its checkpoint after so many epochs and steps."""
        self._epoch.set(epochs)
        self._step.set(step)
        self._saved_step.set(step)

    def stepped(self, step: int, samples: int, learning_rate: float) -> None:
        """A step is done; `samples` are those of all processes."""
        self._step.set(step)
        self._learning_rate.set(learning_rate)
        self._total += samples
        self._samples.inc(samples)

    def computed(self, loss: Tensor, norm: Tensor | None) -> None:
        """The latest loss and gradient norm, each a scalar on any device."""
        self._loss[0] = loss
        if norm is not None:
            self._norm[0] = norm

    def scaled(self, scale: float, skipped: bool) -> None:
        """The loss scale of fp16 after a step, and whether the step was left out."""
        self._scale.set(scale)
        self._skipped.inc(skipped)

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Around what a checkpoint makes the training wait for."""
        with self.activities.doing("checkpoint"), self.checkpoint_seconds.time():
            yield

    def saved(self, step: int, seconds: float) -> None:
        """A checkpoint is complete, `seconds` after its pause began; called from any thread."""
        self._write_seconds.observe(seconds)
        self._saved_step.set(step)

    def judged(self, epoch: int, accuracy: float, loss: float = math.nan) -> None:
        """An epoch is done; accuracy and loss are of held-out data."""
        self._epoch.set(epoch)
        self._accuracy.set(accuracy)
        self._held_out_loss.set(loss)

    def _latest(self, name: str, meaning: str) -> list[Tensor]:
        """A place for a scalar that is fetched only when it is asked for."""
        place = [torch.tensor(torch.nan)]
        Gauge(name, meaning, registry=self.registry).set_function(lambda: float(place[0]))
        return place


def _tell_of_gpu(registry: CollectorRegistry, device: torch.device) -> None:
    memory = Gauge(
        "training_gpu_memory_bytes", "Reserved on this process's GPU by PyTorch", registry=registry
    )
    memory.set_function(lambda: torch.cuda.memory_reserved(device))
    # Needs nvidia-ml-py and a whole GPU; without them there is no such metric.
    if not math.isnan(_utilisation(device)):
        busy = Gauge(
            "training_gpu_utilisation",
            "Share of the last second or less in which this process's GPU computed, from 0 to 1",
            registry=registry,
        )
        busy.set_function(lambda: _utilisation(device))


def _utilisation(device: torch.device) -> float:
    """From 0 to 1; not a number where it cannot be had, whatever NVML's reason is."""
    with contextlib.suppress(Exception):
        return torch.cuda.utilization(device) / 100
    return math.nan
