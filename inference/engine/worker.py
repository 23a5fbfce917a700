"""Worker process that loads a model and computes batches until the server closes the socket."""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from inference.allocator import keep_freed_memory
from inference.engine.backends import Choice, load_backend
from inference.engine.handlers import Handler, Source, choose_handler
from inference.engine.interface import DATATYPES, InputError, TensorSpec
from inference.engine.process import Message, Slot, WorkerSpec, receive, send
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.devices import choose_device
from workload.manifest import ExportError
from workload.report import emit

MAX_ERROR_CHARACTERS: Final = 2000
MAX_TRACE_CHARACTERS: Final = 20_000
_PR_SET_PDEATHSIG: Final = 1


def main(end: socket.socket, slots: Sequence[Slot], spec: WorkerSpec) -> None:
    """Load the model, then compute batches until the server closes its end of the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Exclude the objects that existed before the fork from garbage collection, which would copy
    # their memory pages.
    gc.freeze()
    keep_freed_memory()
    _exit_with_server()
    exit_with_fork_server()
    end.setblocking(True)
    try:
        handler = load(spec)
    except Exception as error:
        message = _public_message(error, str(spec.config.model_path))
        send(end, {"type": "failed", "message": message[:MAX_ERROR_CHARACTERS]})
        return
    # Also exclude the loaded model from garbage collection.
    gc.collect()
    gc.freeze()
    on_gpu = spec.config.device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        for slot in slots:
            slot.inputs.on_map(Pinning())
    ready = {
        "type": "ready",
        "inputs": [_tensor_fields(tensor) for tensor in handler.inputs],
        "outputs": [_tensor_fields(tensor) for tensor in handler.outputs],
        "devices": torch.cuda.device_count() if on_gpu else 1,
    }
    send(end, ready)
    while (request := receive(end)) is not None:
        send(end, _compute_batch(slots[request["slot"]], handler, request))


class Pinning:
    """Registration of an arena's current memory with CUDA.

    Copies from registered memory to the GPU take less than a third of the usual time (measured
    on an H100: 0.38 instead of 1.33 ms for 19 MiB), and do not block.
    """

    _address: int | None = None

    def __call__(self, memory: NDArray[np.uint8] | None) -> None:
        """Unregister the current memory, if any, and register `memory` unless it is None."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if self._address is not None:
            runtime.cudaHostUnregister(self._address)
            self._address = None
        if memory is None:
            return
        if int(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)) == 0:
            self._address = memory.ctypes.data
            return
        # Without registration, copies work, but are slower. CUDA reports the error in the next
        # operation, so run one here and ignore the error.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")


def _exit_with_server() -> None:
    """Make this process exit, even during a computation, if the server is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101  true in every process that multiprocessing started

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def exit_with_fork_server() -> None:
    """Make the kernel kill this process, even during a computation, if the fork server is killed.

    The server then learns that the worker has exited, and replaces it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _tensor_fields(tensor: TensorSpec) -> tuple[str, str, tuple[int, ...]]:
    # A handler may declare shapes such as torch.Size, which orjson does not serialize.
    return tensor.name, tensor.datatype, tuple(map(int, tensor.shape))


def _client_message(error: BaseException) -> str:
    """Return an error's message for a client, without surrogates, which UTF-8 cannot encode."""
    return str(error).encode("utf-8", "replace").decode()[:MAX_ERROR_CHARACTERS]


def _public_message(error: BaseException, directory: str) -> str:
    """Return an error message that clients may see.

    Exceptions other than ExportError and ConfigurationError are only logged, because their messages
    may contain anything, and anyone can read the readiness response.
    """
    cause: BaseException | None = error
    while isinstance(cause, ExportError | ConfigurationError):
        cause = cause.__cause__
    if cause is None:
        return _client_message(error)
    emit("load_failed", folder=directory, trace="".join(traceback.format_exception(error)))
    return (
        f"{directory} cannot be loaded: {type(cause).__name__}: see load_failed in the server log"
    )


def load(spec: WorkerSpec) -> Handler:
    """Load a handler with its model and run all of its examples.

    Raise ConfigurationError if there is no GPU for the worker, and ExportError if the export
    cannot be served. A custom handler may raise any exception.
    """
    torch.set_num_threads(spec.threads)
    config, manifest = spec.config, spec.manifest
    device = choose_device(config.device, spec.device_index)
    choice = Choice(config, manifest, device, spec.compile_cache)
    handler = choose_handler(config.handler, manifest)
    source = Source(Path(config.model_path), manifest, device, lambda: load_backend(choice))
    handler.load(source)
    for example in handler.examples(config.max_batch):
        samples = len(next(iter(example.values())))
        # A handler may reject the default example, which is all zeros.
        with contextlib.suppress(InputError):
            check_outputs(handler.compute(example), handler.outputs, samples)
    return handler


def check_outputs(
    outputs: dict[str, NDArray[Any]], specs: tuple[TensorSpec, ...], samples: int
) -> None:
    """Raise ExportError if a handler does not return the outputs that it declared."""
    if outputs.keys() != {spec.name for spec in specs}:
        raise ExportError(
            f"the handler returned the outputs {sorted(outputs)}, but declared "
            f"{sorted(spec.name for spec in specs)}"
        )
    for spec in specs:
        array = outputs[spec.name]
        wanted = (samples, *spec.shape[1:])
        fits = array.ndim == len(wanted) and all(
            size in (-1, found) for size, found in zip(wanted, array.shape, strict=True)
        )
        if not fits or DATATYPES.get(array.dtype) != spec.datatype:
            raise ExportError(
                f"the handler returned {spec.name} as {array.dtype} {list(array.shape)} for "
                f"{samples} samples, but declared {spec.datatype} {list(spec.shape)}"
            )


def _compute_batch(slot: Slot, handler: Handler, request: Message) -> Message:
    started = time.perf_counter()
    result: Message = {"slot": request["slot"], "tensors": []}
    try:
        outputs = handler.compute(slot.inputs.get(request["tensors"]))
        check_outputs(outputs, handler.outputs, request["samples"])
        names = outputs if request["output_names"] is None else request["output_names"]
        # This fails if the values have a type that cannot be sent, or need too much memory.
        result["tensors"] = slot.outputs.put({name: [outputs[name]] for name in names})
    except Exception as error:
        # Do not keep the error: its traceback refers to tensors, and to these local variables.
        result["error"] = _describe(error, final=request["final"])
    result["seconds"] = time.perf_counter() - started
    return result


def _describe(error: Exception, *, final: bool) -> tuple[str, str]:
    """Return the kind of an error, `input` or `memory`, and its message.

    Unless the result is `final`, the server computes the requests of the batch again one by one.
    """
    if isinstance(error, InputError):
        return "input", _client_message(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "memory", "not enough memory for this request: send fewer samples at once"
    cuda = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and "CUDA error" in str(error)
    )
    if final or cuda:
        trace = "".join(traceback.format_exception(error))
        emit("compute_failed", trace=trace[-MAX_TRACE_CHARACTERS:])
    if cuda:
        # Exit, because all later batches would fail as well. A new process has a new CUDA context.
        os._exit(exit_codes.FAILED)
    return "input", "the model cannot process this input; see compute_failed in the server log"
