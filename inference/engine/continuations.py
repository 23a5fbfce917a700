"""Texts that wait for a worker or are being continued by one."""

import itertools
from collections import deque
from collections.abc import AsyncGenerator, Callable

from inference.engine.channel import Message
from inference.engine.interface import DeadlineError, InputError, OverloadedError
from inference.engine.process import Worker
from inference.engine.texts import Text


class Continuations:
    """At most `most` texts of each worker at a time; at most `most_waiting` others wait."""

    def __init__(self, ready: Callable[[], list[Worker]], most: int, most_waiting: int) -> None:
        self._ready = ready
        self._most, self._most_waiting = most, most_waiting
        self._texts: dict[int, Text] = {}
        self._waiting: deque[int] = deque()
        self._owners: dict[int, Worker] = {}
        self._identities = itertools.count()

    def __bool__(self) -> bool:
        return bool(self._texts)

    @property
    def waiting(self) -> int:
        """That no worker has."""
        return len(self._waiting)

    async def tokens(self, text: Text) -> AsyncGenerator[int, None]:
        """The tokens of a new text as they come. Raises OverloadedError, and what it ends with."""
        if len(self._waiting) >= self._most_waiting:
            raise OverloadedError(f"{len(self._waiting)} texts wait already")
        identity = next(self._identities)
        self._texts[identity] = text
        self._waiting.append(identity)
        self.dispatch()
        try:
            async for token in text.tokens():
                yield token
        finally:
            self._forget(identity)

    def dispatch(self) -> None:
        """Give what waits to workers that have room."""
        while self._waiting:
            worker = min(self._ready(), key=lambda worker: len(worker.texts), default=None)
            if worker is None or len(worker.texts) >= self._most:
                return
            identity = self._waiting.popleft()
            self._owners[identity] = worker
            worker.continue_text(identity, self._texts[identity].message)

    def add(self, worker: Worker, message: Message) -> None:
        """A worker tells of one more token of each of its texts."""
        for identity, token in message["tokens"]:
            if identity in self._texts:
                self._texts[identity].add(token)
        failed = {int(key): InputError(text) for key, text in message["errors"].items()}
        for identity in (*message["ended"], *failed):
            worker.texts.discard(identity)
            self._owners.pop(identity, None)
            if identity in self._texts:
                self._texts[identity].end(failed.get(identity))
        self.dispatch()

    def expire(self, now: float) -> None:
        """End those whose deadline has passed."""
        for text in self._texts.values():
            if text.deadline < now:
                text.end(DeadlineError("the deadline passed before the text was complete"))

    def lose(self, worker: Worker, error: Exception) -> None:
        """The worker died."""
        for identity in worker.texts:
            self._owners.pop(identity, None)
            if identity in self._texts:
                self._texts[identity].end(error)

    def refuse_all(self, error: Exception, computed: bool) -> None:
        """Nobody will continue what waits, and where `computed` is true no others either."""
        for identity in [*self._texts] if computed else [*self._waiting]:
            self._texts[identity].end(error)
        self._waiting.clear()

    def _forget(self, identity: int) -> None:
        """A text has ended, or nobody reads it any more."""
        del self._texts[identity]
        if identity in self._waiting:
            self._waiting.remove(identity)
        worker = self._owners.pop(identity, None)
        if worker is not None:
            worker.texts.discard(identity)
            worker.send({"do": "stop", "id": identity})
            self.dispatch()
