"""A worker as the server sees it: a process, its memory, and what it is computing."""

import asyncio
import multiprocessing
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from typing import Any, Final

from numpy.typing import NDArray

from inference.engine.batching import Batch
from inference.engine.channel import Message, ServerEnd, socket_pair
from inference.engine.job import Job, Slot, new_slots

# Forked from a process that has imported torch: another worker is there at once.
_context: Final = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["inference.engine.preloaded"])


def _run(end: socket.socket, slots: Sequence[Slot], job: Job) -> None:
    """Imported there only: it needs torch."""
    from inference.engine.worker import main

    main(end, slots, job)


class Worker:
    """One worker. `received` gets its messages, and `ended` the reason of its end, once."""

    def __init__(
        self,
        job: Job,
        received: Callable[["Worker", Message], None],
        ended: Callable[["Worker", str], None],
    ) -> None:
        self.job = job
        self.ready = False
        self.failed = False
        """Whether it told that it could not load."""
        self.expects = 0
        """Samples that were there when it became free, with what it had computed: under steady
        load as many will be there soon."""
        self.batches: deque[Batch] = deque()
        """What it has been sent and has not answered: the first is being computed."""
        self.since = 0.0
        """When it began with what it does now, or told of it the last time."""
        self._received, self._ended = received, ended
        self._loop = asyncio.get_running_loop()
        self._slots = new_slots()
        self._free = deque(range(len(self._slots)))
        self._process: ForkServerProcess | None = None
        self._channel: ServerEnd | None = None
        self._why = ""

    @property
    def busy(self) -> bool:
        """Whether it has anything to do."""
        return bool(self.batches)

    @property
    def pid(self) -> int | None:
        """Of the process, when it has been started."""
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process; `received` is told when it is ready or failed to load."""
        ours, theirs = socket_pair()
        # Not a task of the event loop: the first one waits until torch has been imported.
        process = _context.Process(target=_run, args=(theirs, self._slots, self.job), daemon=True)
        starting = asyncio.ensure_future(asyncio.to_thread(process.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The thread goes on: what it starts ends by itself when our end is closed.
            starting.add_done_callback(lambda _: ours.close())
            starting.add_done_callback(lambda _: theirs.close())
            raise
        theirs.close()
        self._process = process
        self._channel = ServerEnd(ours, lambda message: self._received(self, message))
        self._loop.add_reader(process.sentinel, self._reap)
        if self._why:
            process.kill()

    def compute(self, batch: Batch) -> None:
        """Send a batch; there must be less than two."""
        slot = self._free.popleft()
        batch.slot = slot
        tensors = self._slots[slot].inputs.put(batch.arrays())
        if not self.busy:
            self.since = time.monotonic()
        self.batches.append(batch)
        if self._channel is not None:
            self._channel.send({"slot": slot, "sizes": batch.sizes, "tensors": tensors})

    def answer(self, message: Message) -> tuple[Batch, dict[str, NDArray[Any]]]:
        """The batch that a message is about, and copies of its outputs."""
        batch = self.batches.popleft()
        outputs = self._slots[batch.slot].outputs.get(message["tensors"])
        copies = {name: array.copy() for name, array in outputs.items()}
        self._free.append(batch.slot)
        return batch, copies

    def kill(self, why: str = "") -> None:
        """End it now; `why` becomes the reason of its end."""
        self._why = self._why or why
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def close(self) -> None:
        """Let it end by itself. Its end is told all the same."""
        self._why = self._why or "it was told to"
        if self._channel is not None:
            self._channel.close()

    def _reap(self) -> None:
        process, channel = self._process, self._channel
        if process is None or channel is None:
            return
        # What it answered before its end is still there.
        channel.read()
        channel.close()
        self._loop.remove_reader(process.sentinel)
        process.join()
        code = process.exitcode
        process.close()
        self._process = None
        self.ready = False
        for slot in self._slots:
            slot.close()
        self._ended(self, self._why or _reason(code))


def _reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"it ended with {code}"
    return f"it was ended by signal {-code}"
