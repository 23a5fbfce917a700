"""Requests beyond what could be computed are refused before they are read.

The queue of the engine sees a request when it has been read and understood. When requests come
faster than even that can be done, they would pile up in front of it, in the event loop, and all of
them would wait for longer and longer.
"""

from typing import Final

from inference.engine.interface import OverloadedError
from inference.http.body import read_body
from inference.http.exchange import Exchange, Response
from inference.http.routes import Target
from inference.service import Service

LEFT: Final = 4096
"""Bytes of a body that has come with its headers: Granian passes over it, and the connection
stays."""

READ: Final = 1 << 16
"""Bytes of a body that costs less to read than a new connection would."""


class Admission:
    """Counts the requests between their first step and their answer, but for slow uploads."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._taken = 0

    def enter(self, exchange: Exchange) -> bool:
        """Whether there is room for one more; it has to `leave`."""
        # The engine could not take more even if all of them had one sample.
        if self._taken > self._service.config.max_queue and self._taken >= (
            self._service.engine.most
        ):
            return False
        self._taken += 1
        exchange.admitted = True
        return True

    def leave(self, exchange: Exchange) -> None:
        """It is answered, or its body does not come. May be called more than once."""
        if exchange.admitted:
            exchange.admitted = False
            self._taken -= 1

    def passes_over(self, exchange: Exchange) -> bool:
        """Whether a refused request needs no reading: its body has come, and nobody looks at it."""
        length = exchange.header("content-length")
        exchange.consumed = (
            length is not None and int(length) <= LEFT and exchange.header("expect") is None
        )
        return exchange.consumed

    @property
    def refusal(self) -> OverloadedError:
        """What a request that has not entered is told."""
        return OverloadedError(
            f"{self._taken} requests are being answered already",
            self._service.engine.expected_wait,
        )

    async def refuse(self, service: Service, exchange: Exchange, _: Target) -> Response:
        """Raises OverloadedError, and reads a body of some length before: the connection stays."""
        refusal = self.refusal
        length = exchange.header("content-length")
        if length is not None and int(length) <= READ and exchange.header("expect") is None:
            await read_body(service, exchange)
        raise refusal
