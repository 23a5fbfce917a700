"""Custom handlers for the engine's tests. Workers import this module."""

import os
import signal
import socket
import time
from collections.abc import Sequence

import numpy as np
import torch

from inference.engine.handlers import Handler, Source, input_spec
from inference.engine.interface import InputError, Tensors, TensorSpec
from inference.engine.process import MAX_MESSAGE_BYTES, Slot, WorkerSpec, receive, send
from workload.manifest import checked_file

FINE, SLEEP, REFUSE, FAIL, DIE, HOLD, CUDA, REFUSE_AT_LENGTH = range(8)
"""Actions, selected by a sample's first number. The second number is the maximum sleep time (s)."""

PASSWORD = "hunter2"
"""Secret in the text of an exception."""

LONG = "\0語" * 900
"""Text that is much longer when encoded as JSON."""

RELEASE = "release"
"""File in the export that ends the action `HOLD` once it exists."""


class Probe(Handler):
    """Handler that returns the third number, the batch size and the count of earlier samples."""

    def load(self, source: Source) -> None:
        checked_file(source.folder, source.manifest.weights)
        self.inputs = (input_spec(source.manifest),)
        self.outputs = (
            TensorSpec("value", "FP32", (-1,)),
            TensorSpec("batch", "INT64", (-1,)),
            TensorSpec("before", "INT64", (-1,)),
            TensorSpec("text", "BYTES", (-1,)),
        )
        self.computed = 0
        self.release = source.folder / RELEASE

    def predict(self, decoded: Tensors) -> Tensors:
        rows = decoded["inputs"]
        for action, seconds, value in rows.tolist():
            if action == SLEEP:
                time.sleep(seconds)
            elif action == HOLD:
                until = time.monotonic() + seconds
                while not self.release.exists() and time.monotonic() < until:
                    time.sleep(0.01)
            elif action == REFUSE:
                raise InputError(f"inputs has {value}")
            elif action == REFUSE_AT_LENGTH:
                raise InputError(f"{value} {LONG}")
            elif action == FAIL:
                raise ValueError("a mistake in the model")
            elif action == CUDA:
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")
            elif action == DIE:
                os.kill(os.getpid(), signal.SIGKILL)
        before = np.arange(self.computed, self.computed + len(rows))
        self.computed += len(rows)
        text = np.array([f"{value:g}".encode() for value in rows[:, 2]], np.object_)
        return {
            "value": rows[:, 2],
            "batch": np.full(len(rows), len(rows)),
            "before": before,
            "text": text,
        }


class Broken(Probe):
    """Handler that fails for all inputs except zeros, which are computed once during loading."""

    def predict(self, decoded: Tensors) -> Tensors:
        if decoded["inputs"].any():
            raise ValueError("a mistake in the model")
        return super().predict(decoded)


class Slow(Probe):
    """Handler that takes two seconds per batch, except for the batches computed during loading."""

    def predict(self, decoded: Tensors) -> Tensors:
        if decoded["inputs"].any():
            time.sleep(2)
        return super().predict(decoded)


class Liar(Probe):
    """Handler whose outputs do not match its declaration."""

    def predict(self, decoded: Tensors) -> Tensors:
        return {"value": decoded["inputs"]}


class Padded(Probe):
    """Handler whose output is as wide as the largest third number in the batch."""

    def load(self, source: Source) -> None:
        super().load(source)
        self.outputs = (TensorSpec("padded", "INT64", (-1, -1)),)

    def predict(self, decoded: Tensors) -> Tensors:
        values = super().predict(decoded)["value"].astype(np.int64)
        return {"padded": np.tile(values[:, None], (1, max(1, values.max())))}


class Texts(Probe):
    """Handler whose input has strings, which are ignored."""

    def load(self, source: Source) -> None:
        super().load(source)
        self.inputs = (TensorSpec("inputs", "BYTES", (-1, 3)),)

    def predict(self, decoded: Tensors) -> Tensors:
        return super().predict({"inputs": np.zeros(decoded["inputs"].shape, np.float32)})


class Changing(Probe):
    """Handler whose outputs may not match its declaration, depending on a sample's third number."""

    def predict(self, decoded: Tensors) -> Tensors:
        outputs = dict(super().predict(decoded))
        match decoded["inputs"][:, 2].max():
            case 1:
                outputs["text"] = np.array(["a text of NumPy"] * len(decoded["inputs"]))
            case 2:
                outputs["text"] = np.array(["not bytes"] * len(decoded["inputs"]), np.object_)
            case 3:
                del outputs["before"]
            case 4:
                outputs["value"] = outputs["value"][:, None]
        return outputs


class NoHandler:
    """A class without the methods of a handler."""


class Exiting:
    """Class whose constructor exits the process, as importing a script may."""

    def __init__(self) -> None:
        raise SystemExit(0)


class Unreachable(Probe):
    """Handler whose constructor fails with a message that must stay hidden from callers."""

    def __init__(self) -> None:
        raise OSError(f"cannot connect to postgres://model:{PASSWORD}@features")


def confuse_batches(connection: socket.socket, slots: Sequence[Slot], spec: WorkerSpec) -> None:
    """Answer the first batch with a result for the second slot. Replaces a worker's main loop."""
    connection.setblocking(True)
    send(connection, {"type": "ready", "inputs": [], "outputs": [], "devices": 1})
    receive(connection)
    for slot in (1, 0):
        send(connection, {"slot": slot, "tensors": [], "seconds": 0})
    receive(connection)


def send_too_much(connection: socket.socket, slots: Sequence[Slot], spec: WorkerSpec) -> None:
    """Answer the first batch with a message that is too long. Replaces a worker's main loop."""
    connection.setblocking(True)
    send(connection, {"type": "ready", "inputs": [], "outputs": [], "devices": 1})
    receive(connection)
    send(connection, {"slot": 0, "tensors": [], "seconds": "0" * MAX_MESSAGE_BYTES})
    send(connection, {"slot": 0, "tensors": [], "seconds": 0})
    receive(connection)
