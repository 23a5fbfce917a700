"""Texts that are being continued, as the server sees them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Final

from inference.engine.channel import LARGEST, Message
from inference.engine.interface import InputError, Sampling

DIGITS: Final = 12
"""At most, of a token in a message."""


class Text:
    """One text. `stop` is called once, when nobody wants more of it or there is no more."""

    def __init__(
        self, tokens: Sequence[int], sampling: Sampling, context: int, deadline: float
    ) -> None:
        if not tokens:
            raise InputError("tokens is empty: there must be at least one to continue")
        if sampling.max_tokens < 1:
            raise InputError(f"max_tokens is {sampling.max_tokens}: it must be at least 1")
        known = [int(token) for token in tokens[-context:]]
        if (len(known) + len(sampling.stop)) * DIGITS > LARGEST:
            raise InputError(f"tokens and stop have more than {LARGEST // DIGITS} together")
        self.message: Message = {
            "tokens": known,
            "max_tokens": sampling.max_tokens,
            "temperature": float(sampling.temperature),
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "stop": [int(token) for token in sampling.stop],
        }
        self.deadline = deadline
        self.ended = False
        self._tokens: deque[int] = deque()
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def add(self, token: int) -> None:
        """One more."""
        self._tokens.append(token)
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """There is no more, or it failed."""
        if not self.ended:
            self.ended = True
            self._error = error
            self._news.set()

    async def tokens(self) -> AsyncIterator[int]:
        """As they come. Raises what it ended with."""
        while True:
            while self._tokens:
                yield self._tokens.popleft()
            if self.ended:
                if self._error is not None:
                    raise self._error
                return
            self._news.clear()
            await self._news.wait()
