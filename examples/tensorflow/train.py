"""Training of a small CNN on the digits data set, with all workers in lockstep.

With one worker, MirroredStrategy uses all of its GPUs (or the CPU). With several
workers, MultiWorkerMirroredStrategy sums the gradients of all workers.
"""

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorflow as tf  # type: ignore[import-untyped]
from examples.tensorflow.cluster import Worker
from training.config import TrainingConfig
from training.data.builtin import digits
from workload.configuration import ConfigurationError
from workload.report import conclude, emit

_HIDDEN = 64
_CLASSES = 10


class InterruptedRunError(Exception):
    """Raised after a worker has received SIGTERM and the state has been saved."""


class DigitsNet(tf.Module):  # type: ignore[misc]
    """A convolution and two dense layers for images of 8 x 8 pixels."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = tf.random.Generator.from_seed(seed)

        def weights(*shape: int) -> tf.Variable:
            inputs = np.prod(shape[:-1])
            return tf.Variable(draw.normal(shape, stddev=float(np.sqrt(2 / inputs))))

        self.filters = weights(3, 3, 1, 16)
        self.hidden = weights(4 * 4 * 16, _HIDDEN)
        self.hidden_bias = tf.Variable(tf.zeros(_HIDDEN))
        self.out = weights(_HIDDEN, _CLASSES)
        self.out_bias = tf.Variable(tf.zeros(_CLASSES))

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.float32)])  # type: ignore[untyped-decorator]
    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Return the logits of each class for images with values from 0 to 1."""
        features = tf.nn.relu(tf.nn.conv2d(images, self.filters, strides=1, padding="SAME"))
        pooled = tf.nn.max_pool2d(features, ksize=2, strides=2, padding="VALID")
        flat = tf.reshape(pooled, [-1, 4 * 4 * 16])
        return tf.nn.relu(flat @ self.hidden + self.hidden_bias) @ self.out + self.out_bias


def create_strategy(worker: Worker, peer_timeout: float) -> tf.distribute.Strategy:
    """Return the strategy that sums gradients over all workers, or over one worker's GPUs."""
    if worker.workers == 1:
        return tf.distribute.MirroredStrategy()
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=peer_timeout)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def run(
    config: TrainingConfig, worker: Worker, handle_sigterm: Callable[[], Callable[[], bool]]
) -> None:
    """Train, or resume from the latest checkpoint, and write a SavedModel to the export directory.

    `handle_sigterm()` installs a SIGTERM handler, and returns a function that returns True once the
    signal has arrived. After any worker has received the signal, all workers save the state and
    raise InterruptedRunError.
    """
    if config.length[0] != "epochs":
        name, value = config.length
        raise ConfigurationError(
            f"{name} is {value}, but this program supports only epochs: set epochs instead"
        )
    began = time.monotonic()
    strategy = create_strategy(worker, config.peer_timeout)
    with strategy.scope():
        model = DigitsNet(config.seed)
        optimizer = tf.keras.optimizers.Adam(config.learning_rate)
        optimizer.build(model.trainable_variables)
        epoch = tf.Variable(0, dtype=tf.int64)
    # The coordination service installs a SIGTERM handler when it starts. Replace it afterwards.
    stopping = handle_sigterm()
    checkpoints = _Checkpoints(config, worker, model, optimizer, epoch)
    start = checkpoints.restore()
    if worker.is_chief:
        replicas = strategy.num_replicas_in_sync
        emit("start", model=config.model, dataset=config.dataset, processes=replicas, epoch=start)
    step = _step(strategy, model, optimizer)
    accuracy = 0.0
    for number in range(start, config.epochs):
        loss = _epoch(strategy, step, config, number, checkpoints, stopping)
        epoch.assign(number + 1)
        accuracy = _accuracy(model)
        if (number + 1) % config.checkpoint_every == 0 or number + 1 == config.epochs:
            checkpoints.save()
        if worker.is_chief:
            emit("epoch", epoch=number + 1, epochs=config.epochs, loss=loss, accuracy=accuracy)
    accuracy = accuracy or _accuracy(model)
    export = checkpoints.export()
    if worker.is_chief:
        seconds = round(time.monotonic() - began, 1)
        conclude("finished", accuracy=accuracy, seconds=seconds, export=str(export))


def _batches(strategy: Any, config: TrainingConfig, epoch: int) -> Any:
    train, _ = digits()
    # TensorFlow's CPU convolutions support only the channels-last layout.
    images = np.moveaxis(train.scaled(), 1, -1)
    # All workers must run the same number of steps: a worker with more steps would wait forever for
    # its peers.
    steps = len(images) // (config.batch_size * strategy.num_replicas_in_sync)
    if steps == 0:
        raise ConfigurationError(
            f"batch_size {config.batch_size} times the number of devices "
            f"({strategy.num_replicas_in_sync}) exceeds the number of samples ({len(images)}): "
            "set a smaller batch_size"
        )

    def worker_batches(context: Any) -> Any:
        replicas = strategy.num_replicas_in_sync // context.num_input_pipelines
        return (
            tf.data.Dataset.from_tensor_slices((images, train.labels))
            .shuffle(len(images), seed=config.seed * 10_007 + epoch)
            .shard(context.num_input_pipelines, context.input_pipeline_id)
            .take(steps * replicas * config.batch_size)
            .batch(config.batch_size, drop_remainder=True)
        )

    return strategy.distribute_datasets_from_function(worker_batches)


def _step(strategy: Any, model: DigitsNet, optimizer: Any) -> Any:
    replicas = strategy.num_replicas_in_sync

    def in_replica(images: tf.Tensor, labels: tf.Tensor, stop: tf.Tensor) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        # The optimizer sums gradients over replicas, but the loss is a mean over all samples.
        gradients = [gradient / replicas for gradient in gradients]
        optimizer.apply(gradients, model.trainable_variables)
        # Return a copy per replica, because a value shared by all replicas cannot be summed.
        return loss / replicas, tf.identity(stop)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any, stop: tf.Tensor) -> tuple[Any, Any]:
        loss, stops = strategy.run(in_replica, args=(images, labels, stop))
        total = tf.distribute.ReduceOp.SUM
        return strategy.reduce(total, loss, axis=None), strategy.reduce(total, stops, axis=None)

    return step


def _epoch(
    strategy: Any,
    step: Any,
    config: TrainingConfig,
    number: int,
    checkpoints: "_Checkpoints",
    stopping: Callable[[], bool],
) -> float:
    loss = 0.0
    for images, labels in _batches(strategy, config, number):
        # All workers see the stop flag in the same step, so they all save after that step.
        loss, stops = step(images, labels, tf.constant(int(stopping())))
        if int(stops) > 0:
            checkpoints.save()
            raise InterruptedRunError(f"in epoch {number + 1} of {config.epochs}")
    if not math.isfinite(float(loss)):
        raise ConfigurationError(
            f"the loss is {float(loss)} in epoch {number + 1}: set a lower learning_rate"
        )
    return round(float(loss), 4)


def _accuracy(model: DigitsNet) -> float:
    _, held_out = digits()
    logits = model(np.moveaxis(held_out.scaled(), 1, -1))
    return round(float(np.mean(np.argmax(logits, axis=1) == held_out.labels)), 4)


class _Checkpoints:
    """Checkpoint and export writer.

    The strategy requires all workers to write, but only the chief's files are kept.
    """

    def __init__(
        self, config: TrainingConfig, worker: Worker, model: Any, optimizer: Any, epoch: Any
    ) -> None:
        self._model, self._worker = model, worker
        self._run = Path(str(config.run_dir))
        self._scratch = self._run / f".worker-{worker.index}"
        directory = self._run if worker.is_chief else self._scratch
        state = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
        self._state, self._epoch = state, epoch
        self._manager = tf.train.CheckpointManager(
            state, str(directory / "checkpoints"), max_to_keep=config.keep_checkpoints
        )

    def restore(self) -> int:
        """Load the latest checkpoint and return the number of finished epochs."""
        newest = tf.train.latest_checkpoint(str(self._run / "checkpoints"))
        if newest is not None:
            self._state.restore(newest).assert_existing_objects_matched()
        return int(self._epoch.numpy())

    def save(self) -> None:
        """Write a checkpoint."""
        self._manager.save()
        self._delete_scratch()

    def export(self) -> Path:
        """Write a SavedModel that returns logits, and return its directory."""
        directory = self._run / "export" if self._worker.is_chief else self._scratch / "export"
        tf.saved_model.save(self._model, str(directory), signatures=self._model.__call__)
        self._delete_scratch()
        return directory

    def _delete_scratch(self) -> None:
        if not self._worker.is_chief:
            shutil.rmtree(self._scratch, ignore_errors=True)
