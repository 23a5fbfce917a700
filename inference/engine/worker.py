"""One process that computes: loads a model, then answers batches until the server closes."""

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import torch
from numpy.typing import NDArray

from inference.engine.backends import Choice, load_backend
from inference.engine.channel import Message, WorkerEnd
from inference.engine.datatypes import NAMES
from inference.engine.handler import Handler, Source
from inference.engine.handlers import choose_handler
from inference.engine.interface import InputError, Tensors, TensorSpec
from inference.engine.job import Job, Slot
from inference.engine.memory import keep_freed_memory
from workload.configuration import ConfigurationError
from workload.devices import choose_device
from workload.manifest import ExportError, Manifest

LONGEST: Final = 2000
"""Characters of an error's text."""


def main(end: socket.socket, slots: Sequence[Slot], job: Job) -> None:
    """Run until the server closes its end. Started by `inference.engine.process`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # What was imported before the fork stays: looking for garbage there would copy its pages.
    gc.freeze()
    keep_freed_memory()
    _end_with_the_server()
    channel = WorkerEnd(end)
    try:
        handler = load(job)
    except (ExportError, ConfigurationError) as error:
        channel.send({"is": "failed", "message": str(error)[:LONGEST]})
        return
    except Exception as error:
        message = f"{job.folder} cannot be loaded: {type(error).__name__}: {error}"
        channel.send({"is": "failed", "message": message[:LONGEST]})
        return
    # And what was loaded stays as well.
    gc.collect()
    gc.freeze()
    channel.send(
        {
            "is": "ready",
            "inputs": [(spec.name, spec.datatype, spec.shape) for spec in handler.inputs],
            "outputs": [(spec.name, spec.datatype, spec.shape) for spec in handler.outputs],
            "devices": torch.cuda.device_count() if _on_gpu(job) else 1,
        }
    )
    try:
        _answer(channel, slots, handler)
    except EOFError:
        return


def _end_with_the_server() -> None:
    """End even in the middle of a computation when the server was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101  true in every process that multiprocessing started

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def load(job: Job) -> Handler:
    """The handler of a job with its model, tried with every example of it. Raises ExportError."""
    torch.set_num_threads(job.threads)
    manifest = Manifest.model_validate_json(job.manifest)
    device = choose_device(job.device, job.index)
    folder = Path(job.folder)
    choice = Choice(job.backend, folder, manifest, device, job.own, Path(job.scratch))
    handler = choose_handler(job.handler, manifest)
    handler.load(Source(folder, manifest, device, lambda: load_backend(choice)))
    for example in handler.examples(job.largest_batch):
        samples = len(next(iter(example.values())))
        # A handler may refuse the usual example, which is all zeros, and say so.
        with contextlib.suppress(InputError):
            check_outputs(handler.compute(example), handler.outputs, samples)
    return handler


def _on_gpu(job: Job) -> bool:
    return job.device != "cpu" and torch.cuda.is_available()


def check_outputs(
    outputs: dict[str, NDArray[Any]], specs: tuple[TensorSpec, ...], samples: int
) -> None:
    """Raises ExportError when a handler does not give what it said."""
    if outputs.keys() != {spec.name for spec in specs}:
        raise ExportError(
            f"the handler gave {sorted(outputs)}, but its outputs are "
            f"{sorted(spec.name for spec in specs)}"
        )
    for spec in specs:
        array = outputs[spec.name]
        wanted = (samples, *spec.shape[1:])
        fits = array.ndim == len(wanted) and all(
            size in (-1, found) for size, found in zip(wanted, array.shape, strict=True)
        )
        if not fits or NAMES.get(array.dtype) != spec.datatype:
            raise ExportError(
                f"the handler gave {spec.name} as {array.dtype} {list(array.shape)} for {samples} "
                f"samples, but said {spec.datatype} {list(spec.shape)}"
            )


def _answer(channel: WorkerEnd, slots: Sequence[Slot], handler: Handler) -> None:
    while True:
        message = channel.receive()
        channel.send(_infer(slots[message["slot"]], handler, message))


def _infer(slot: Slot, handler: Handler, message: Message) -> Message:
    began = time.perf_counter()
    inputs = slot.inputs.get(message["tensors"])
    sizes: list[int] = message["sizes"]
    errors: dict[int, list[str]] = {}
    try:
        parts = [_compute(handler, inputs, sum(sizes))]
    except Exception as error:
        parts = []
        if len(sizes) == 1:
            errors[0] = _plain(error)
        else:
            parts, errors = _one_by_one(handler, inputs, sizes)
    placed: list[Any] = []
    if parts:
        placed = list(slot.outputs.put({name: [p[name] for p in parts] for name in parts[0]}))
    seconds = time.perf_counter() - began
    return {"tensors": placed, "errors": errors, "seconds": seconds}


def _one_by_one(
    handler: Handler, inputs: Tensors, sizes: list[int]
) -> tuple[list[dict[str, NDArray[Any]]], dict[int, list[str]]]:
    """Only who cannot be computed gets an error."""
    parts, errors = [], {}
    begin = 0
    for index, size in enumerate(sizes):
        rows = {name: array[begin : begin + size] for name, array in inputs.items()}
        begin += size
        try:
            parts.append(_compute(handler, rows, size))
        except Exception as error:
            errors[index] = _plain(error)
    return parts, errors


def _compute(handler: Handler, inputs: Tensors, samples: int) -> dict[str, NDArray[Any]]:
    outputs = handler.compute(inputs)
    for name, array in outputs.items():
        if len(array) != samples:
            raise ValueError(f"the handler gave {len(array)} rows of {name} for {samples}")
    return outputs


def _plain(error: Exception) -> list[str]:
    """What kind of error, and its text."""
    if isinstance(error, InputError):
        return ["input", str(error)[:LONGEST]]
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return ["memory", "there is not enough memory for it: send fewer samples at once"]
    lines = str(error).strip().splitlines() or ["no reason given"]
    return ["input", f"the model cannot compute it: {type(error).__name__}: {lines[0]}"[:LONGEST]]
