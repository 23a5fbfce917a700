"""The body of a request: never more than is allowed, in one request and in all of them."""

from typing import Final

from inference.engine.interface import OverloadedError
from inference.http.exchange import Exchange, HttpError
from inference.service import Service

_PLAIN: Final = ("", "identity")


async def read_body(service: Service, exchange: Exchange) -> bytes:
    """The whole body. Raises HttpError and OverloadedError; before reading where it is announced.

    Memory counts as used until the request is answered: `Exchange.body_bytes`.
    """
    if exchange.header("content-encoding") not in (None, *_PLAIN):
        raise HttpError(415, "Content-Encoding must not be used: send the body as it is")
    limit = service.config.max_body_bytes
    announced = exchange.header("content-length")
    if announced is not None:
        # The server underneath has refused what is no number, and ends the body there.
        length = int(announced)
        if length > limit:
            raise _too_large(limit)
        if length == 0:
            return b""
        _account(service, exchange, length)
        exchange.reading = True
        body = await exchange.protocol()
        _arrived(exchange)
        return body
    if exchange.header("transfer-encoding") is None:
        return b""
    return await _read_unannounced(service, exchange, limit)


def release_body(service: Service, exchange: Exchange) -> None:
    """The request was answered."""
    service.metrics.buffered -= exchange.body_bytes
    exchange.body_bytes = 0


async def _read_unannounced(service: Service, exchange: Exchange, limit: int) -> bytes:
    exchange.reading = True
    body = bytearray()
    async for chunk in exchange.protocol:
        if len(body) + len(chunk) > limit:
            raise _too_large(limit)
        _account(service, exchange, len(chunk))
        body += chunk
    _arrived(exchange)
    return bytes(body)


def _arrived(exchange: Exchange) -> None:
    exchange.reading = False
    exchange.consumed = True


def _account(service: Service, exchange: Exchange, size: int) -> None:
    if service.metrics.buffered + size > service.config.max_buffered_bytes:
        raise OverloadedError(
            f"the bodies of all requests are above {service.config.max_buffered_bytes} bytes: "
            "try again"
        )
    service.metrics.buffered += size
    exchange.body_bytes += size


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"the body is larger than {limit} bytes: send fewer samples")
