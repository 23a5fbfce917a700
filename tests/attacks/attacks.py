"""Attacks on the HTTP server. Each runs for a limited time and raises if a response is wrong.

Attackers connect from addresses other than 127.0.0.1, the address of the well-behaved callers. The
server may answer 503 and 504, but no other 5xx status.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Final

from tests.attacks.client import (
    MIB,
    connected,
    exchange,
    expect,
    head,
    read_statuses,
    request,
    run_concurrently,
)
from tests.attacks.model import DIE
from tests.attacks.target import infer_body

Attack = Callable[[int, float], Awaitable[None]]


def held_connections(count: int, *pieces: bytes, peers: int = 1, pause: float = 1.0) -> Attack:
    """Keep connections open that send one piece per `pause` seconds and never read responses."""

    async def attack(port: int, until: float) -> None:
        async def one(number: int) -> None:
            await asyncio.sleep(number % 200 / 200)
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    async with connected(port, 2 + number % peers if peers else 1) as (
                        reader,
                        writer,
                    ):
                        position = 0
                        while time.monotonic() < until and not reader.at_eof():
                            if pieces:
                                writer.write(pieces[min(position, len(pieces) - 1)])
                                position += 1
                            await asyncio.sleep(pause)
                await asyncio.sleep(0.2)

        await run_concurrently(count, one)

    return attack


def repeated(content: bytes, allowed: set[int]) -> Attack:
    """Send one request repeatedly, and check the status of each response."""

    async def attack(port: int, until: float) -> None:
        del until
        await expect(port, content, allowed)

    return attack


def burst(count: int) -> Attack:
    """Repeatedly open many connections at the same time."""

    async def attack(port: int, until: float) -> None:
        async def one(number: int) -> None:
            async with connected(port, 2 + number % 40):
                await asyncio.sleep(1)

        while time.monotonic() < until:
            await run_concurrently(count, one)

    return attack


async def unread_responses(port: int, until: float) -> None:
    """Request large responses and do not read them."""

    async def one(number: int) -> None:
        async with connected(port, 2 + number) as (reader, writer):
            reader.set_exception(EOFError())
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(4):
                writer.write(request(infer_body(samples=15, output="large")))
            await asyncio.sleep(max(0.0, until - time.monotonic()))

    await run_concurrently(40, one)


async def full_uploads(port: int, until: float) -> None:
    """Upload 16 MiB on many connections at the same time, repeatedly."""
    tensors = request(b"{}" + b" " * (16 * MIB - 2), "Inference-Header-Content-Length: 2")

    async def one(number: int) -> None:
        while time.monotonic() < until:
            await exchange(port, tensors, peer=2 + number)

    await run_concurrently(20, one)


async def smuggling(port: int, until: float) -> None:
    """Send ambiguous lengths, with a second request in the body that must never be answered."""
    del until
    hidden = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
    length = f"Content-Length: {len(hidden)}"
    variants = [
        (length, "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", length),
        ("Content-Length: 0", length),
        (length, length),
        (f"Content-Length: {len(hidden)}, {len(hidden)}",),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
        ("Transfer-Encoding: chunked, identity",),
        ("X: y\r\n Transfer-Encoding: chunked", length),
        *((f"Content-Length: {value}",) for value in ("+2", "-2", "0x2", "2_0", "2 2", "")),
    ]
    for lines in variants:
        codes = await exchange(port, head(None, *lines) + hidden, count=2)
        if 200 in codes:
            raise AssertionError(f"{lines} was answered with {codes}")


async def truncated_bodies(port: int, until: float) -> None:
    """Send chunks and bodies that end too early or with the wrong bytes."""
    del until
    body = infer_body()
    chunked = head(None, "Transfer-Encoding: chunked")
    size = f"{len(body):x}\r\n".encode()
    for chunk_end in (b"XX0\r\n\r\n", b"0\r\n\r\n", b"\r\nzz\r\n\r\n", b"\r\n-1\r\n\r\n"):
        await expect(port, chunked + size + body + chunk_end, {400})
    async with connected(port) as (reader, writer):
        writer.write(head(len(body) + 10) + body)
        writer.write_eof()
        if (codes := await read_statuses(reader)) not in ([], [400]):
            raise AssertionError(f"a truncated body was answered with {codes}")


async def malformed_heads(port: int, until: float) -> None:
    """Send request heads that are too large or not HTTP/1.1."""
    del until
    large = "X: " + "y" * MIB
    for content, allowed in (
        (head(0, large), {400, 431}),
        (head(0, *("X: y" for _ in range(200))), {400, 431}),
        (head(0, path="/" + "x" * 100_000), {404, 414, 431}),
        (head(0, path="/v2/%2e%2e%2f%00\xff/\\..\\"), {400, 404}),
        (b"POST /v2 HTTP/1.1\r\n\r\n", {400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), {400}),
        (head(0, path="/predict"), {404}),
        (request(b"x", "Content-Encoding: gzip"), {415}),
        (head(None, method="CONNECT", path="x:1"), {400, 404, 405, 501}),
    ):
        await expect(port, content, allowed)


async def pipelines(port: int, until: float) -> None:
    """Send many requests at once on one connection, and check that all are answered in order."""
    content = request(infer_body())
    while time.monotonic() < until:
        for count in (3, 200):
            codes = await exchange(port, content * count, count)
            if codes != [200] * count:
                raise AssertionError(
                    f"{count} pipelined requests: {len(codes)} responses, {set(codes)}"
                )


async def overflowing_shapes(port: int, until: float) -> None:
    """Send shapes and sizes that overflow, and deeply nested brackets."""
    del until
    for shape in ("[-1, 3]", "[9223372036854775808, 3]", "[4611686018427387904, 4]", "[0, 3]"):
        body = infer_body().replace(b"[1, 3]", shape.encode())
        await expect(port, request(body), {400})
    for field in ("id", "shape", "datatype", "name", "data"):
        deep = b'{"inputs": [{"name": "inputs", "datatype": "FP32", "data": [1, 2, 3], "shape": [1,'
        deep += b' 3], "' + field.encode() + b'": ' + b"[" * 1015 + b"]" * 1015 + b"}]}"
        await expect(port, request(deep), {400})


def flood(content: bytes, connections: int, pause: float, count: int = 1, peers: int = 8) -> Attack:
    """Send requests on many connections, each `pause` seconds after the previous response."""

    async def attack(port: int, until: float) -> None:
        async def send(number: int) -> None:
            while time.monotonic() < until:
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    async with connected(port, 2 + number % peers) as (reader, writer):
                        while time.monotonic() < until:
                            writer.write(content * count)
                            if len(await read_statuses(reader, count)) < count:
                                break
                            await asyncio.sleep(pause)

        await run_concurrently(connections, send)

    return attack


async def resets(port: int, until: float) -> None:
    """Reset connections while a large response is sent."""

    async def one(number: int) -> None:
        while time.monotonic() < until:
            async with connected(port, 2 + number) as (reader, writer):
                peer: socket.socket = writer.get_extra_info("socket")
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.write(request(infer_body(samples=4, output="large")))
                await reader.read(100_000)
            await asyncio.sleep(0.2)

    await run_concurrently(8, one)


def slow_readers(rate: int) -> Attack:
    """Read large responses at a rate (bytes per second) above the minimum."""

    async def attack(port: int, until: float) -> None:
        async def one(number: int) -> None:
            async with connected(port, 2 + number) as (reader, writer):
                writer.transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
                )
                reader._limit = 4096  # type: ignore[attr-defined]
                writer.write(request(infer_body(samples=15, output="large")))
                # The suppressed TimeoutError ends this loop.
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    while await reader.read(rate):
                        await asyncio.sleep(1)
                    await asyncio.sleep(1)

        await run_concurrently(40, one)

    return attack


def streams(first: bytes, piece: bytes, count: int) -> Attack:
    """Send a piece on many connections as fast as possible, and reconnect if they are closed."""

    async def attack(port: int, until: float) -> None:
        async def one(number: int) -> None:
            while time.monotonic() < until:
                with contextlib.suppress(OSError):
                    async with connected(port, 2 + number % 8) as (_, writer):
                        writer.write(first)
                        while time.monotonic() < until:
                            writer.write(piece)
                            await writer.drain()
                            await asyncio.sleep(0)
                await asyncio.sleep(0.01)

        await run_concurrently(count, one)

    return attack


def unread(content: bytes, count: int) -> Attack:
    """Send requests on many connections, and never read the responses."""

    async def attack(port: int, until: float) -> None:
        async def one(number: int) -> None:
            async with connected(port, 2 + number % 40) as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(content)
                await asyncio.sleep(min(4.5, max(0.0, until - time.monotonic())))

        await run_concurrently(count, one)

    return attack


async def connections_at_the_limit(port: int, until: float) -> None:
    """Open connections one after the other, while slow bodies occupy all connections."""

    async def connect(number: int) -> None:
        while time.monotonic() < until:
            async with connected(port, 100 + number):
                await asyncio.sleep(0.02)

    slow_bodies = held_connections(4096, head(1000), b"", peers=2)
    await asyncio.gather(slow_bodies(port, until), run_concurrently(40, connect))


async def canceled(port: int, until: float) -> None:
    """Reset connections while their requests are computed."""

    async def one(number: int) -> None:
        while time.monotonic() < until:
            async with connected(port, 2 + number % 8) as (_, writer):
                peer: socket.socket = writer.get_extra_info("socket")
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.write(request(infer_body()))
                await asyncio.sleep(0.002)

    await run_concurrently(40, one)


async def mixed_pipelines(port: int, until: float) -> None:
    """Send different requests at once, and check that all are answered in order."""
    parts = {
        GET: 200,
        request(infer_body()): 200,
        MISSING: 404,
        OPENAPI: 200,
        request(b"{}"): 400,
        request(infer_body() + b" " * 100_000): 200,
    }
    while time.monotonic() < until:
        codes = await exchange(port, b"".join(parts) * 20, len(parts) * 20)
        if codes != [*parts.values()] * 20:
            raise AssertionError(f"mixed pipelines were answered with {codes}")


async def ambiguous_chunks(port: int, until: float) -> None:
    """Send chunk sizes, trailers and lengths on which two parsers may disagree."""
    del until
    body = infer_body()
    size = f"{len(body):x}"
    for first in (f"0x{size}", f"+{size}", f"{size} ", f"{size};a\n", f"f{'f' * 16}{size}"):
        chunks = f"{first}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        await expect(port, CHUNKED + chunks + GET, {400})
    for trailer in ("Content-Length: 9", "Transfer-Encoding: x", "X: y\r\n z", "\0: x"):
        chunks = f"{size}\r\n".encode() + body + b"\r\n0\r\n" + trailer.encode()
        await expect(port, CHUNKED + chunks + b"\r\n\r\n" + GET, {400})
    for name in ("\x0bchunked", '"chunked"', "chunked, chunked", ""):
        await expect(port, head(None, f"Transfer-Encoding: {name}") + GET, {400})
    for line in ("X: y\rContent-Length: 1", "X: y\nContent-Length: 1", ": x", "X", "X: a\0b"):
        await expect(port, head(None, line, path="/v2", method="GET"), {400})
    await expect(port, head(None, "Content-Length: " + "0" * 5000), {400})
    await expect(port, head(None, f"Content-Length: {'0' * 5000}{len(body)}") + body, {200})


async def invalid_names(port: int, until: float) -> None:
    """Send odd names of models, outputs and parameters, and odd timeouts."""
    del until
    for name in ("..", "%2e%2e%2f", "%252e", "%00", "%0d%0aX:%20y", "%ed%a0%80", "a" * 90):
        for path in (f"/v2/models/{name}/infer", f"/v2/models/attacked/versions/{name}/infer"):
            await expect(port, head(0, path=path), {404})
    for timeout in ("nan", "inf", "-1", "0", "1_0", "0x10", "\xb2", "9" * 3000):
        await expect(port, request(infer_body(), f"X-Request-Timeout: {timeout}"), {400})
    body = infer_body()
    for wanted in (b"[%s]" % b",".join([b'{"name": "value"}'] * 5000), b"[1]", b'{"name": 1}'):
        document = body.replace(b'[{"name": "value"}]', wanted)
        await expect(port, request(document), {400})
    for parameters in (b"[]", b'{"classification": 3}', b'{"timeout": 1e300}', b'{"a": {}}'):
        await expect(port, request(b'{"parameters": %s, %s' % (parameters, body[1:])), {400})
    for text in (rb"\ud800", rb"\u0000", b"\xff"):
        await expect(port, request(body.replace(b'"inputs"', b'"%s"' % text)), {400})


async def half_handshakes(port: int, until: float) -> None:
    """Begin TLS handshakes on many connections and never answer the server."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="x")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    await held_connections(1500, outgoing.read(), b"", peers=40)(port, until)


async def short_connections(port: int, until: float) -> None:
    """Open a connection per request."""
    while time.monotonic() < until:
        await expect(port, request(infer_body(), "Connection: close"), {200, 429, 503})
        await asyncio.sleep(0.002)


async def poison(port: int, until: float) -> None:
    """Send three requests that terminate the worker."""
    for _ in range(3):
        await expect(port, request(infer_body(DIE)), {503})
        await asyncio.sleep(0.5)
    await asyncio.sleep(max(0.0, until - time.monotonic()))


def large_json(body: bytes) -> Attack:
    """Send 16 MiB of JSON several times."""
    content = body + b" " * (16 * MIB - len(body))
    return repeated(request(content), {400, 413, 429})


def json_outputs(samples: int) -> bytes:
    """Return a request whose response has 1 MiB of values per sample as JSON."""
    body = infer_body(samples=samples, output="large")
    return request(body.replace(b', "parameters": {"binary_data": true}', b""))


def large_document(field: bytes, item: bytes) -> bytes:
    items = item * ((15 * MIB) // len(item))
    tensor = b'"name": "inputs", "datatype": "FP32", "data": [1, 2, 3], "shape": [1, 3]'
    return b'{"%s": [%s0], "inputs": [{%s}]}' % (field, items, tensor)


ANNOUNCED = head(16 * MIB)
CHUNKED = head(None, "Transfer-Encoding: chunked")

TENSOR = b'{"inputs": [{"name": "inputs", "datatype": "FP32", "shape": [1, 3], %s}]}'


async def invalid_numbers(port: int, until: float) -> None:
    """Send numbers that JSON or the tensor cannot represent, and inconsistent binary sizes."""
    del until
    for value in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"1e-99999x", b"0x1"):
        await expect(port, request(TENSOR % (b'"data": [1, 2, %s]' % value)), {400})
    for size in (b"-12", b"11", b"9223372036854775808", b"1e3", b"12.0", b"true", b"9" * 400):
        head = TENSOR % (b'"parameters": {"binary_data_size": %s}' % size)
        for length in (len(head), len(head) + 13, -1, 2**63, 2**64, "1_0", "+1", ""):
            line = f"Inference-Header-Content-Length: {length}"
            await expect(port, request(head + bytes(12), line), {400})


async def protocol_variants(port: int, until: float) -> None:
    """Send HTTP/1.0, Expect without a body, and compressed bodies."""
    del until
    body = infer_body()
    old = request(body).replace(b"HTTP/1.1", b"HTTP/1.0")
    await expect(port, old, {200})
    await expect(port, old.replace(b"Host: x", b"Connection: keep-alive"), {200})
    await expect(port, head(0, "Expect: 100-continue"), {400})
    await expect(port, head(len(body), "Expect: 200-ok") + body, {200, 417})
    for encoding in ("gzip", "deflate, gzip", "br", "x"):
        await expect(port, request(b"x" * 1000, f"Content-Encoding: {encoding}"), {415})


GET = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
OPENAPI = head(None, path="/openapi.json", method="GET")
METRICS = head(None, path="/metrics", method="GET")
MISSING = request(b"x" * 10, path="/none")
LOAD = "/v2/repository/models/attacked/load"

ATTACKS: Final[dict[str, Attack]] = {
    "64 announced bodies of 16 MiB": held_connections(64, ANNOUNCED, b""),
    "20 bodies that stop at 15 MiB": held_connections(
        20, ANNOUNCED + b" " * (15 * MIB), b"", peers=20
    ),
    "4,300 idle connections": held_connections(4300, peers=40),
    "4,300 idle connections, an address each": held_connections(4300, peers=4300),
    "4,300 busy connections, an address each": flood(request(infer_body()), 4300, 1, peers=4300),
    "3,900 slow headers": held_connections(3900, b"GET /v2 HTTP/1.1\r\n", b"X: y\r\n", peers=40),
    "3,000 slow bodies": held_connections(3000, ANNOUNCED, b" ", peers=40),
    "3,000 slow chunked bodies": held_connections(3000, CHUNKED, b"1\r\n \r\n", peers=40),
    "40 clients that do not read responses": unread_responses,
    "20 uploads of 16 MiB at once": full_uploads,
    "16 MiB of nested lists as id": large_json(large_document(b"id", b"[[0],[0]],")),
    "16 MiB of numbers as id": large_json(large_document(b"id", b"0,")),
    "16 MiB of objects": large_json(large_document(b"parameters", b'{"a":1},')),
    "deep brackets and overflowing shapes": overflowing_shapes,
    "smuggling": smuggling,
    "broken chunks and half-closed bodies": truncated_bodies,
    "oversized and malformed heads": malformed_heads,
    "pipelines of 3 and 200": pipelines,
    "2,000 busy connections": flood(request(infer_body()), 2000, pause=1),
    "one connection per request": short_connections,
    "8,000 idle connections at once": burst(8000),
    "4,500 slow bodies, an address each": held_connections(4500, head(1000), b"", peers=4500),
    "4,500 slow bodies": held_connections(4500, head(1000), b"", peers=40),
    "chunks of one byte": flood(CHUNKED + b"1\r\n \r\n" * 40_000 + b"0\r\n\r\n", 20, pause=0.1),
    "huge chunk extensions": held_connections(
        200, CHUNKED, b"1;" + b"x" * 60_000, peers=20, pause=0.1
    ),
    "3,900 bodies that stop at 60 KiB": held_connections(
        3900, head(62_000) + b"x" * 61_000, b"", peers=40
    ),
    "3,900 heads that stop at 60 KiB": held_connections(
        3900, head(None, *["X: " + "x" * 640] * 95, method="GET")[:-2], b"", peers=40
    ),
    "3,900 heads that stop at 15 KiB": held_connections(
        3900, head(None, *["X: " + "x" * 640] * 23, method="GET")[:-2], b"", peers=40
    ),
    "encoded paths of 57 KiB": flood(head(None, path="/" + "%61" * 19_000, method="GET"), 100, 0),
    "encoded paths of 15 KiB": flood(head(None, path="/" + "%61" * 5_000, method="GET"), 100, 0),
    "heads of many lines": flood(head(None, *["X:"] * 12_000, method="GET"), 20, pause=0.05),
    "pipelines of 8,000 GET": flood(GET, 20, pause=0.1, count=8000),
    "300 pipelines after a request": flood(
        request(infer_body()) + GET * 8000, 300, pause=1, count=1
    ),
    "100 clients that send as fast as possible": flood(request(infer_body()), 100, pause=0),
    "100 clients requesting a missing path": flood(MISSING, 100, pause=0),
    "100 clients with a body above the limit": flood(head(2**30), 100, pause=0),
    "100 clients with an invalid header": flood(head(0, "Transfer-Encoding: x"), 100, pause=0),
    "40 slow readers": slow_readers(8192),
    "connections reset during a response": resets,
    "2 MiB of small JSON elements": repeated(
        request(TENSOR % (b'"data": [%s0]' % (b"0," * (2**20 - 100)))), {400}
    ),
    "a body of 24 MiB": repeated(request(b" " * (24 * MIB)), {413}),
    "numbers and sizes out of range": invalid_numbers,
    "HTTP/1.0, Expect and compression": protocol_variants,
    "three poison requests": poison,
    "4,000 bodies that stop at 80 KiB": held_connections(
        4000, head(90_000) + b"x" * 80_000, b"", peers=40
    ),
    "connections at the limit": connections_at_the_limit,
    "100 clients that send empty lines": streams(b"", b"\r\n" * 30_000, 100),
    "20 clients that send discarded bodies": streams(head(2**40, path="/none"), b"x" * 2**16, 20),
    "3,000 unread pipelines": unread(OPENAPI * 200, 3000),
    "100 unread responses of 2 MiB of JSON": unread(json_outputs(2) * 4, 100),
    "40 clients requesting 2 MiB of JSON": flood(json_outputs(2), 40, pause=0.1),
    "100 clients requesting the description": flood(OPENAPI, 100, pause=0.02),
    "100 clients with zeros in Content-Length": flood(
        head(None, f"Content-Length: {'0' * 5000}5"), 100, pause=0.05
    ),
    "canceled requests": canceled,
    "mixed pipelines": mixed_pipelines,
    "ambiguous chunks and lengths": ambiguous_chunks,
    "odd names, parameters and timeouts": invalid_names,
    "500 slow trailers": held_connections(
        500, CHUNKED + b"0\r\n", b"X: y\r\n", peers=20, pause=0.1
    ),
    "3,000 bodies awaiting 100 Continue": held_connections(
        3000, head(1000, "Expect: 100-continue"), b"", peers=40
    ),
}
ADMIN: Final[dict[str, Attack]] = {
    "admin: 300 idle connections": held_connections(300, peers=10),
    "admin: 300 slow bodies": held_connections(300, head(1000, path=LOAD), b"", peers=10),
    "admin: 300 idle connections of the prober": held_connections(300, peers=0),
    "admin: 100 clients requesting metrics": flood(METRICS, 100, pause=0),
    "admin: pipelined requests for metrics": flood(METRICS, 20, pause=0.1, count=100),
    "admin: 100 clients loading the model": flood(head(0, path=LOAD), 100, pause=0),
}
TLS: Final[dict[str, Attack]] = {
    "TLS: 6,000 clients without a handshake": held_connections(6000, peers=40),
    "TLS: 1,500 half handshakes": half_handshakes,
    "TLS: plain HTTP": flood(GET, 100, pause=0.05),
}
FEW_FILES: Final[dict[str, Attack]] = {
    "256 open files: 1,000 idle connections": held_connections(1000, peers=40),
    "256 open files: 1,000 slow bodies": held_connections(1000, head(1000), b"", peers=40),
}
LISTENER_ATTACKS: Final = (
    "64 announced bodies of 16 MiB",
    "20 bodies that stop at 15 MiB",
    "4,300 idle connections",
    "3,900 slow headers",
    "3,000 slow bodies",
    "3,000 slow chunked bodies",
    "40 clients that do not read responses",
    "20 uploads of 16 MiB at once",
    "smuggling",
    "broken chunks and half-closed bodies",
    "8,000 idle connections at once",
    "4,500 slow bodies",
    "chunks of one byte",
    "huge chunk extensions",
    "heads of many lines",
    "pipelines of 8,000 GET",
    "300 pipelines after a request",
    "40 slow readers",
    "connections reset during a response",
)
"""Attacks on connections and buffers, used to compare other HTTP servers with ours."""

ALL: Final = ATTACKS | ADMIN | TLS | FEW_FILES


def run(name: str, port: int, seconds: float, results: Connection) -> None:
    """Repeat an attack in this process for some time, and send the error, if any."""
    # Yield the CPU to the server: a real attacker uses another machine.
    os.nice(19)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # asyncio warns about each write to a connection that the server has closed.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        asyncio.run(_limited(name, port, seconds))
        results.send("")
    except BaseException as error:
        results.send(f"{type(error).__name__}: {error}"[:160])


async def _limited(name: str, port: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    async with asyncio.timeout(seconds + 60):
        while time.monotonic() < until:
            await ALL[name](port, until)
            await asyncio.sleep(0.01)
