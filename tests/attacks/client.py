"""Client side of the attacks: requests, connections from several addresses, and responses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

from tests.attacks.target import INFER

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

MIB: Final = 2**20
ALLOWED_5XX: Final = {503, 504}


def head(length: int | None, *headers: str, path: str = INFER, method: str = "POST") -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request(body: bytes, *headers: str, path: str = INFER) -> bytes:
    """Return a complete request."""
    return head(len(body), *headers, path=path) + body


@contextlib.asynccontextmanager
async def connected(port: int, peer: int = 2) -> AsyncIterator[Streams]:
    """Connect from 127.0.0.`peer`."""
    address = (f"127.0.{peer >> 8}.{peer & 255}", 0)
    streams = await asyncio.open_connection("127.0.0.1", port, local_addr=address, limit=64 * MIB)
    try:
        yield streams
    finally:
        streams[1].transport.abort()


async def read_statuses(reader: asyncio.StreamReader, count: int = 1) -> list[int]:
    """Return the status codes of up to `count` responses; fewer if the connection ends."""
    codes: list[int] = []
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        async with asyncio.timeout(20):
            while len(codes) < count:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                code = int(lines[0].split()[1])
                if code == 100:
                    continue
                if code >= 500 and code not in ALLOWED_5XX:
                    raise AssertionError(f"answered {code}")
                names = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                await reader.readexactly(int(names.get("content-length", "0")))
                codes.append(code)
    return codes


async def exchange(port: int, content: bytes, count: int = 1, peer: int = 2) -> list[int]:
    """Send bytes and return the status codes of the responses."""
    async with connected(port, peer) as (reader, writer):
        with contextlib.suppress(ConnectionError):
            writer.write(content)
            await writer.drain()
        return await read_statuses(reader, count)


async def expect(port: int, content: bytes, allowed: Iterable[int]) -> None:
    """Raise unless the response, if any, has an allowed status."""
    for code in await exchange(port, content):
        if code not in allowed:
            raise AssertionError(f"{content[:60]!r} was answered with {code}")


async def run_concurrently(count: int, attacker: Callable[[int], Awaitable[None]]) -> None:
    """Run `count` attackers concurrently. The server may close their connections."""

    async def ignore_disconnects(number: int) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError):
            await attacker(number)

    await asyncio.gather(*(ignore_disconnects(number) for number in range(count)))
