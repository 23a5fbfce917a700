"""Worker processes: specification, shared memory, messages, and the server's handle for a worker.

Arrays are passed in anonymous shared memory (memfd), so nothing remains if both processes are
killed, and the size of /dev/shm does not matter. Messages are JSON in SOCK_SEQPACKET packets.
"""

import asyncio
import contextlib
import mmap
import multiprocessing
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from inference.config import InferenceConfig
from inference.engine.batching import Batch
from inference.engine.interface import DATATYPES, NUMPY, Datatype, pack_texts, unpack_texts
from workload.manifest import Manifest

SLOTS: Final = 2
"""Maximum number of batches per worker: the one being computed, and the next."""

ALIGNMENT: Final = 64
"""Alignment (bytes) of arrays: a cache line, which also suits vector instructions."""

INITIAL_BYTES: Final = 1 << 16
"""Initial size (bytes) of an arena. Larger sizes are powers of two."""

STOPPED: Final = "the server stopped it"

START_SECONDS: Final = 1.0
"""Time (s) to wait for a process that is still starting when its start is canceled."""

MAX_MESSAGE_BYTES: Final = 1 << 17
"""Maximum size (bytes) of a message. Data that may be larger is passed in arenas."""

Message = dict[str, Any]

Parts = Sequence[NDArray[Any]]
"""Arrays to concatenate along the first dimension."""

ArrayLocation = tuple[str, Datatype, tuple[int, ...], int, int]
"""Name, datatype, shape, offset and size of an array in an arena. JSON messages contain
it as a list."""

# Workers are forked from a process that has imported torch, so they start quickly.
_context: Final = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["inference.engine.preloaded"])


@dataclass(frozen=True)
class WorkerSpec:
    """The model that a worker serves, and the device it uses."""

    config: InferenceConfig
    manifest: Manifest
    """Manifest that the weights must match, even if the directory has changed since it was read."""
    device_index: int
    threads: int
    compile_cache: Path
    """Directory for compiled models."""


class Arena:
    """Shared memory for the inputs or the outputs of one slot.

    Only the process that writes to the memory grows it; the other process then maps it again. An
    arena can be passed to the worker process as an argument.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._on_map: Callable[[NDArray[np.uint8] | None], object] = lambda _: None
        self._map()

    @classmethod
    def create(cls) -> "Arena":
        """Allocate a new, empty arena."""
        descriptor = os.memfd_create("inference")
        try:
            os.ftruncate(descriptor, INITIAL_BYTES)
            return cls(descriptor)
        except OSError:
            os.close(descriptor)
            raise

    def __reduce__(self) -> tuple[Callable[..., "Arena"], tuple[Any, ...]]:
        return _attach, (DupFd(self._descriptor),)

    def put(self, arrays: Mapping[str, Parts]) -> list[ArrayLocation]:
        """Overwrite the arena with copies of arrays, and return their locations."""
        locations: list[ArrayLocation] = []
        offset = 0
        for name, parts in arrays.items():
            datatype, written = DATATYPES[parts[0].dtype], parts
            shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
            if datatype == "BYTES":
                texts = [text for part in parts for text in part.ravel().tolist()]
                written = [np.frombuffer(pack_texts(texts), np.uint8)]
            size = sum(part.nbytes for part in written)
            if offset + size > self._size:
                self._grow(1 << (offset + size - 1).bit_length())
            inside = (size,) if datatype == "BYTES" else shape
            np.concatenate(written, out=self._view(inside, written[0].dtype, offset))
            locations.append((name, datatype, shape, offset, size))
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        return locations

    def get(self, locations: Sequence[Sequence[Any]]) -> dict[str, NDArray[Any]]:
        """Return views of the arrays at the locations from `put`, valid until the next `put`."""
        end = max((offset + size for *_, offset, size in locations), default=0)
        if end > self._size:
            self._map()
        arrays: dict[str, NDArray[Any]] = {}
        for name, datatype, shape, offset, size in locations:
            if datatype == "BYTES":
                packed = self._view((size,), NUMPY["UINT8"], offset).data
                arrays[name] = unpack_texts(packed, tuple(shape), name)
            else:
                arrays[name] = self._view(tuple(shape), NUMPY[datatype], offset)
        return arrays

    def on_map(self, callback: Callable[[NDArray[np.uint8] | None], object]) -> None:
        """Call `callback` with the memory now, and again whenever it is remapped.

        Before the memory is remapped, also call `callback` with None, because the old mapping may
        be removed afterwards.
        """
        self._on_map = callback
        self._map()

    def close(self) -> None:
        """Release the memory. Existing views keep their mapping."""
        os.close(self._descriptor)
        del self._memory

    def _grow(self, size: int) -> None:
        before = self._size
        os.ftruncate(self._descriptor, size)
        try:
            self._map()
        except (MemoryError, OSError):
            # Otherwise, the other process would map the larger size even for small batches.
            os.ftruncate(self._descriptor, before)
            raise

    def _view(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
        return np.ndarray(shape, dtype, buffer=self._memory, offset=offset)

    def _map(self) -> None:
        self._on_map(None)
        size = os.fstat(self._descriptor).st_size
        # Map again instead of resizing, so that views of the old mapping stay valid.
        self._memory = mmap.mmap(self._descriptor, size)
        self._size = size
        self._on_map(np.frombuffer(self._memory, np.uint8))


def _attach(descriptor: Any) -> Arena:
    return Arena(descriptor.detach())


class Slot(NamedTuple):
    """Shared memory of one batch: its inputs and its outputs."""

    inputs: Arena
    outputs: Arena


def send(end: socket.socket, message: Message) -> None:
    """Send a message. Raise OSError if the other process is gone."""
    end.send(orjson.dumps(message))


def receive(end: socket.socket) -> Message | None:
    """Return the next message; None if the other process is gone. May raise BlockingIOError.

    Raise ValueError if the message is too long or damaged.
    """
    try:
        packet, _, flags, _ = end.recvmsg(MAX_MESSAGE_BYTES)
    except ConnectionError:
        return None
    if flags & socket.MSG_TRUNC:
        raise ValueError(f"it has more than {MAX_MESSAGE_BYTES} bytes")
    message: Message | None = orjson.loads(packet) if packet else None
    return message


class Worker:
    """The server's handle for one worker process.

    `on_result` is called for each computed batch, and `on_exit` once, with the reason for the exit.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        on_result: Callable[["Worker", Message], None],
        on_exit: Callable[["Worker", str], None],
    ) -> None:
        self.spec = spec
        self.ready = False
        """True if the worker has loaded the model."""
        self.loaded: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        """The worker's first message: `ready` with the model's tensors, or `failed` with the
        reason."""
        self.expected_samples = 0
        """Number of queued samples to wait for before the next batch is sent.

        It is the size of the last batch plus the number of samples that were queued when that batch
        finished, but at most a full batch. It is 0 (no waiting) unless the load is steady."""
        self.batches: deque[Batch] = deque()
        """Batches that were sent but not answered; the first one is being computed."""
        self.busy_since = 0.0
        """Time at which the worker started the current batch, or sent its last result."""
        self._on_result, self._on_exit = on_result, on_exit
        self._loop = asyncio.get_running_loop()
        self._slots: tuple[Slot, ...] = ()
        self._free = deque(range(SLOTS))
        self._process: ForkServerProcess | None = None
        self._end: socket.socket | None = None
        self.exit_reason = ""
        """Reason why the server killed or stopped the worker; empty if it did not."""

    async def start(self) -> None:
        """Start the process; `loaded` completes once the model is loaded or loading has failed.

        Raise OSError, EOFError or RuntimeError if the process, its memory or a thread cannot be
        created; `on_exit` is then not called.
        """
        with contextlib.ExitStack() as opened:
            arenas = [
                opened.enter_context(contextlib.closing(Arena.create())) for _ in range(2 * SLOTS)
            ]
            self._slots = tuple(map(Slot, arenas[::2], arenas[1::2]))
            # If one end is closed, the other receives an empty packet.
            server_end, worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.callback(server_end.close)
            opened.callback(worker_end.close)
            # Start the process in a thread, because the first start waits until the fork server has
            # imported torch.
            arguments = (worker_end, self._slots, self.spec)
            process = _context.Process(target=_run, args=arguments, daemon=True)
            starting = asyncio.ensure_future(asyncio.to_thread(process.start))
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:
                # The thread continues. The process that it starts exits when the server's end is
                # closed. Wait, because the fork server may terminate if the server exits during the
                # start. In tests, several servers share one fork server.
                remaining = opened.pop_all()
                starting.add_done_callback(lambda _: remaining.close())
                await asyncio.wait([starting], timeout=START_SECONDS)
                raise
            opened.pop_all()
        worker_end.close()
        self._process = process
        self._end = server_end
        server_end.setblocking(False)
        self._loop.add_reader(server_end, self._read, server_end)
        self._loop.add_reader(process.sentinel, self._reap, process)
        if self.exit_reason:
            process.kill()

    def compute(self, batch: Batch) -> None:
        """Send a batch. The worker must have fewer than `SLOTS` batches.

        Raise OSError or MemoryError if there is not enough memory for its inputs.
        """
        slot = self._free[0]
        tensors = self._slots[slot].inputs.put(batch.arrays())
        if self._end is not None:
            # This never blocks, because the buffer has space for the messages of all slots. `_reap`
            # detects an exit.
            with contextlib.suppress(ConnectionError):
                message = {"slot": slot, "samples": batch.samples, "tensors": tensors}
                message |= {"output_names": batch.output_names, "final": len(batch.pieces) == 1}
                send(self._end, message)
        if not self.batches:
            self.busy_since = time.monotonic()
        batch.slot = self._free.popleft()
        self.batches.append(batch)

    def finish(self, message: Message) -> list[Mapping[str, NDArray[Any]]]:
        """Remove the first batch, and return copies of the outputs of its pieces.

        The list is empty if the batch failed.

        Raise OSError or MemoryError if there is not enough memory for the outputs.
        """
        batch = self.batches.popleft()
        # Free the slot before anything can fail. It is reused only after this method has returned.
        self._free.append(batch.slot)
        outputs = self._slots[batch.slot].outputs.get(message["tensors"])
        return [] if "error" in message else batch.split(outputs)

    def kill(self, reason: str = STOPPED) -> None:
        """Kill the process; `reason` is reported as the reason for its exit."""
        self.exit_reason = self.exit_reason or reason
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def close(self) -> None:
        """Let the process exit. `on_exit` is still called."""
        self.exit_reason = self.exit_reason or STOPPED
        self._disconnect()

    def _reject(self, reason: str) -> None:
        """Kill the process, and ignore everything else that it has sent."""
        self.kill(reason)
        self._disconnect()

    def _disconnect(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            self._loop.remove_reader(end)
            end.close()

    def _read(self, end: socket.socket) -> None:
        """Handle all received messages."""
        while self._end is not None:
            try:
                message = receive(end)
            except BlockingIOError:
                return
            except ValueError as error:
                self._reject(f"it sent a message that cannot be read: {error}")
                return
            if message is None:
                self._loop.remove_reader(end)
                return
            if self.ready:
                # A result for another batch would be returned to the wrong clients.
                if not self.batches or self.batches[0].slot != message["slot"]:
                    self._reject("it sent a result for a batch other than the first one")
                    return
                self._on_result(self, message)
                continue
            self.ready = message["type"] == "ready"
            if not self.loaded.done():
                self.loaded.set_result(message)

    def _reap(self, process: ForkServerProcess) -> None:
        if self._end is not None:
            # Results that the process sent before its exit may still be in the socket.
            self._read(self._end)
        self._disconnect()
        self._loop.remove_reader(process.sentinel)
        process.join()
        code = process.exitcode or 0
        process.close()
        self._process = None
        for slot in self._slots:
            for arena in slot:
                arena.close()
        found = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
        reason = self.exit_reason or f"it {found}"
        if not self.loaded.done():
            message = f"a worker died while loading the model: {reason}"
            self.loaded.set_result({"type": "failed", "message": message})
        self._on_exit(self, reason)


def _run(end: socket.socket, slots: Sequence[Slot], spec: WorkerSpec) -> None:
    # Imported only in the worker, because it needs torch.
    from inference.engine.worker import main

    # The server may stop while this worker is loading the model or computing a batch.
    with contextlib.suppress(BrokenPipeError):
        main(end, slots, spec)
