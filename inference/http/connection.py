"""HTTP/1.1 connection that enforces limits on its client. httptools (llhttp) parses requests."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import httptools

from inference.http.limits import LINGER_SECONDS, Progress
from inference.http.messages import HttpError, Request, Response, error_response
from inference.http.output import Output

if TYPE_CHECKING:
    from inference.http.application import Application, Pending

MAX_HEAD_BYTES: Final = 1 << 14
MAX_HEADERS: Final = 100

DISCARDED_BYTES: Final = 1 << 16
"""Maximum size (bytes) of a rejected request's body that is received and discarded, so that the
client can reuse the connection. For larger bodies, the connection is closed."""

TURN_BYTES: Final = 1 << 18
"""Body size (bytes) above which connections take turns receiving the rest of their bodies."""

PIECE_BYTES: Final = 1 << 10
"""Maximum number of bytes per parser call, except in a body of known length. This many bytes
contain at most about 50 requests or 170 chunks."""

QUEUED_BYTES: Final = 1 << 10
"""Bytes charged for a request that waits for the response to an earlier one."""

TURN_SECONDS: Final = 0.001
"""Maximum time (s) per turn that a connection may spend on its pipelined requests."""

ARRIVAL_SECONDS: Final = 0.0001
"""Maximum time (s) spent on data that has just arrived, before its connection has to wait for a
turn. Thousands of connections may receive data at the same time."""

DELIVERY_POLL_SECONDS: Final = 0.02
"""Interval (s) between checks of whether the client has received the last response."""


class Connection(asyncio.Protocol):
    """Connection that receives requests and sends their responses in order."""

    transport: asyncio.Transport
    parser: httptools.HttpRequestParser
    _output: Output

    def __init__(self, application: "Application") -> None:
        self._application, self._limits = application, application.limits
        self.peer = ""
        self.since = time.monotonic()
        """Time at which the connection was opened or the last response was sent."""
        self.charged = 0
        """Bytes that count against `max_buffered_bytes`."""
        self._reading: Request | None = None
        """The request that is being received."""
        self._in_body = self._input_ended = self._lingering = self._may_send_more = False
        self._unparsed = b""
        """Received bytes to parse after the response to an earlier request, or in the next turn."""
        self._awaits_turn = False
        self._convert: Callable[[], None] | None = None
        """Converts the computed outputs of the active request to large JSON, in the next turn."""
        self._active: Request | None = None
        """The request that is being answered."""
        self._answered = False
        """True if a request that ended in the bytes being parsed has been answered."""
        self._queue: deque[Request] = deque()
        """Complete pipelined requests that wait behind the active one."""
        self._head_bytes = self._header_lines = self._received = self._served = 0
        self._body_since = self.since
        self._receiving = Progress()
        self._unsent = 0

    @property
    def idle(self) -> bool:
        """True if no byte of a request has arrived and no response is pending."""
        return self.evictable and self._reading is None

    @property
    def evictable(self) -> bool:
        """True if no complete request head has arrived and no response is pending."""
        waiting = self._active or self._queue or self._unparsed
        return not (waiting or self._in_body or self._output.awaits_client)

    @property
    def sheddable(self) -> bool:
        """True if the connection may be dropped to free memory.

        This is the case while it waits for its client (to send the rest of a request, or to read a
        response) or for a turn to parse large JSON, or if it has unparsed bytes.
        """
        receives = self._reading is not None or bool(self._unparsed)
        return receives or self._output.awaits_client or self._awaits_parsing

    @property
    def _awaits_parsing(self) -> bool:
        return self._awaits_turn and bool(self._queue) and self._queue[0].is_slow

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it if a limit has been reached."""
        self.transport = cast(asyncio.Transport, transport)
        self._output = Output(self.transport)
        address = transport.get_extra_info("peername")
        self.peer = address[0] if address else ""
        self.parser = httptools.HttpRequestParser(self)
        if not self._limits.add(self):
            self.abort()

    def connection_lost(self, _: Exception | None) -> None:
        """Cancel the requests of a client that has disconnected."""
        self._input_ended = True
        self._output.discard()
        self._limits.remove(self)
        self._limits.release(self, self.charged)
        if self._active is not None and self._active.pending is not None:
            self._active.pending.future.cancel()
        if self._reading is not None and self._in_body:
            self._queue.append(self._reading)
        self._reading = None
        self._abandon_queued()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        if self._input_ended:
            return
        waits = self._active or self._output.paused or self._awaits_turn
        if waits or self._unparsed or len(data) > PIECE_BYTES:
            if self._limits.charge(self, len(data)):
                self._unparsed += data
                if not self._awaits_turn:
                    self._parse(time.monotonic() + ARRIVAL_SECONDS)
            else:
                self._reject(self._application.memory_limit_error)
        else:
            self._feed(data)
            if self._in_body and self._received > TURN_BYTES:
                self._await_turn()

    def take_turn(self) -> None:
        """Continue processing a large body, large JSON or many requests."""
        self._awaits_turn = False
        until = time.monotonic() + TURN_SECONDS
        if self._convert is not None:
            convert, self._convert = self._convert, None
            convert()
        elif self._queue:
            self._advance(until)
        elif self._unparsed:
            self._parse(until)
        else:
            self._resume_reading()

    @property
    def _is_blocked(self) -> bool:
        """True if no request can be answered now.

        This is the case if another request is being computed, the client is not reading, or the
        connection is closing, for example because the client has closed it.
        """
        return self._active is not None or self._output.paused or self.transport.is_closing()

    @property
    def _rest_of_body(self) -> int:
        """Number of bytes to receive until the end of the body; 0 if it is sent in chunks."""
        if not self._in_body or self._reading is None or self._reading.length is None:
            return 0
        return self._reading.length - self._received

    def _await_turn(self) -> None:
        if self._awaits_turn or self.transport.is_closing():
            return
        self.transport.pause_reading()
        self._awaits_turn = True
        if self._convert is not None or (self._queue and self._queue[0].is_slow):
            turns = self._limits.parsing
        elif self._queue or self._unparsed:
            turns = self._limits.pipelined
        else:
            turns = self._limits.receiving
        turns.queue(self)

    def _parse(self, until: float) -> None:
        """Parse received bytes until the time is up or a request has to wait."""
        data, position = self._unparsed, 0
        self._unparsed = b""
        while position < len(data) and not (self._input_ended or self._is_blocked or self._queue):
            piece = data[position : position + max(PIECE_BYTES, self._rest_of_body)]
            position += len(piece)
            self._limits.release(self, min(len(piece), self.charged))
            self._feed(piece)
            # The rest of a body takes less time than a turn.
            if time.monotonic() > until and not self._rest_of_body:
                break
        rest = data[position:]
        if self._input_ended:
            self._limits.release(self, min(len(rest), self.charged))
            rest = b""
        self._unparsed = rest
        if rest and self._is_blocked:
            self.transport.pause_reading()
        elif rest or (self._in_body and self._received > TURN_BYTES):
            self._await_turn()
        elif not self._queue and not self._awaits_turn:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if not (self.transport.is_reading() or self.transport.is_closing()):
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        self._answered = False
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._input_ended:
                self._reject(HttpError(400, f"the request is not valid HTTP/1.1: {error}"))
        if self._reading is not None and not self._input_ended:
            # Trailers and chunk extensions count as headers until the next part of a body arrives.
            size = min(len(data), PIECE_BYTES)
            self._head_bytes += size
            if self._head_bytes > MAX_HEAD_BYTES + PIECE_BYTES * self._in_body:
                self._reject(HttpError(431, f"the headers are larger than {MAX_HEAD_BYTES} bytes"))
            elif not (self._in_body or self.reserve(self._reading, size)):
                self._reject(self._application.memory_limit_error)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Continue after the headers of a request that offers an upgrade, such as to HTTP/2."""
        request = self._reading
        if request is None:
            # The request itself is complete; nothing may follow it.
            self._input_ended = True
            return
        # The parser expects no body after an upgrade, so parse the body with a new parser.
        callbacks = SimpleNamespace(
            on_body=self.on_body, on_message_complete=self.on_message_complete
        )
        self.parser = httptools.HttpRequestParser(callbacks)
        length = request.length
        framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        head = f"POST / HTTP/1.1\r\nconnection: close\r\n{framing}\r\n\r\n"
        self.parser.feed_data(head.encode() + rest)

    def pause_writing(self) -> None:
        """Record that the client reads more slowly than responses are written."""
        self._output.paused = True

    def resume_writing(self) -> None:
        """Continue with the response or, once it has been written, with the next request."""
        self._output.paused = False
        self._output.resume()
        if self._output.paused:
            return
        unsent, self._unsent = self._unsent, 0
        self._limits.release(self, min(unsent, self.charged))
        self.since = time.monotonic()
        if self._lingering:
            self._end()
        else:
            self._advance()

    def on_message_begin(self) -> None:
        """Begin a request. The parser calls this and the other `on_...` methods."""
        self._reading = Request()
        self._head_bytes = self._header_lines = 0

    def on_url(self, url: bytes) -> None:
        """Append to the path, and set the method, which the parser has read by now."""
        if self._reading is not None:
            self._reading.method = self.parser.get_method().decode("latin-1")
            self._reading.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header, and join the values of a repeated one with commas. Ignore trailers."""
        request = self._reading
        if request is None or self._in_body:
            return
        # The parser removes only the whitespace before a value.
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
        headers = request.headers
        self._header_lines += 1
        if self._header_lines > MAX_HEADERS:
            self._reject(HttpError(431, f"more than {MAX_HEADERS} headers"))
        elif key not in headers:
            headers[key] = text
        elif key in ("host", "content-length", "transfer-encoding"):
            self._reject(HttpError(400, f"the {key} header was sent more than once"))
        else:
            headers[key] += f", {text}"

    def on_headers_complete(self) -> None:
        """Accept or reject the request before its body arrives."""
        request = self._reading
        if request is None or self._input_ended:
            return
        request.decode_path()
        version = self.parser.get_http_version()
        # An HTTP/1.0 client waits until the connection is closed, unless the response contains
        # `Connection: keep-alive`.
        request.close = (
            version == "1.0" or not self.parser.should_keep_alive() or self.parser.should_upgrade()
        )
        request.peer = self.peer
        self._received, self._in_body = 0, True
        self._body_since = request.started
        self._receiving.restart(request.started, 0)
        if request.response is None:
            request.response = self._application.begin(request, version)
        # An HTTP/1.0 client would mistake `100 Continue` for the response.
        expectation = request.headers.get("expect", "").lower() if version != "1.0" else ""
        length = request.length
        if request.response is not None:
            if length is None or length > DISCARDED_BYTES or expectation:
                self._reject_with(request, request.response)
        elif length != 0 and expectation == "100-continue" and not self._is_blocked:
            self._output.write([b"HTTP/1.1 100 Continue\r\n\r\n"])

    def on_body(self, data: bytes) -> None:
        """Store and count a part of the body."""
        request = self._reading
        if request is None or self._input_ended:
            return
        self._received += len(data)
        self._head_bytes = 0
        if request.response is not None:
            return
        if self._received > request.limit:
            self._reject(request.too_large_error)
        elif not self.reserve(request, len(data)):
            self._reject(self._application.memory_limit_error)
        else:
            request.append(data)

    def on_message_complete(self) -> None:
        """Answer the request, or queue it behind earlier ones."""
        request = self._reading
        if request is None or self._input_ended:
            return
        if self.parser.should_upgrade() and request.length != 0:
            # The body follows: see `_ignore_upgrade`.
            return
        self._reading, self._in_body = None, False
        # Answer further requests of a pipeline in turns, because some take a millisecond.
        waits = self._active is not None or self._output.paused or self._answered
        if waits and not self.reserve(request, QUEUED_BYTES):
            self._reject(self._application.memory_limit_error)
            return
        self._queue.append(request)
        if not waits:
            self._answered = True
            self._advance()
        elif self._is_blocked:
            self.transport.pause_reading()
        else:
            self._await_turn()

    def reserve(self, request: Request, size: int) -> bool:
        """Count a request's bytes until it is answered; return False if they exceed a limit."""
        # Bytes that are counted after `connection_lost` would never be released.
        if self.transport.is_closing() or not self._limits.charge(self, size):
            return False
        request.charged += size
        return True

    def close(self) -> None:
        """Close the connection when all buffered responses have been sent."""
        self._input_ended = True
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._input_ended = True
        self.transport.abort()

    def shed(self) -> None:
        """Free memory by dropping all data that waits for the client or for a turn."""
        self._limits.release(self, min(len(self._unparsed), self.charged))
        self._unparsed = b""
        if self._reading is not None:
            self._reject(self._application.memory_limit_error)
        elif self._awaits_parsing:
            request = self._queue.popleft()
            self._abandon_queued()
            self._reject_with(request, error_response(self._application.memory_limit_error))
        else:
            self._limits.release(self, self.charged)
            self.abort()

    def check(self, now: float) -> None:
        """Enforce the time limits on the client."""
        config = self._limits.config
        if self._output.unsent_bytes or self._output.awaits_delivery:
            if self._output.is_too_slow(now, config):
                self.abort()
            elif self._lingering:
                self.since = now
        elif self._lingering:
            if now - self.since > LINGER_SECONDS:
                self.abort()
        elif self._in_body and self._unparsed:
            # The server, not the client, is delaying the body.
            self._body_since = now
            self._receiving.restart(now, self._received)
        elif self._in_body:
            late = now - self._body_since > config.body_seconds
            if late or self._receiving.is_too_slow(now, self._received, config):
                self._reject(HttpError(408, "the body did not arrive in time"))
        elif self.evictable:
            if self._reading is not None or not self._served:
                limit: float = config.header_seconds
                started = self._reading.started if self._reading is not None else self.since
            else:
                limit, started = config.idle_seconds, self.since
            if now - started > limit:
                self.close()

    def _reject(self, error: Exception) -> None:
        """Respond with an error without receiving the rest, and close the connection."""
        request = self._reading or Request()
        if not request.request_id:
            self._application.assign_id(request)
        self._reject_with(request, error_response(error))

    def _reject_with(self, request: Request, response: Response) -> None:
        self._reading, self._in_body, self._input_ended = None, False, True
        request.close = True
        request.response = response
        self._limits.release(self, min(request.charged, self.charged))
        request.charged, request.body = 0, b""
        self._queue.append(request)
        self._advance()

    def _advance(self, until: float = 0.0) -> None:
        """Answer one queued request. During a turn, continue until the turn ends at `until`.

        Without turns, a client that pipelines many requests, or sends large JSON, would block the
        event loop.
        """
        while self._queue and not self._is_blocked and (until or not self._queue[0].is_slow):
            self._answer(self._queue.popleft())
            if not until or time.monotonic() > until:
                break
        if self._queue or self._unparsed:
            if not (self._is_blocked or self._lingering):
                self._await_turn()
        elif not (self._input_ended or self._awaits_turn):
            self._resume_reading()

    def _abandon_queued(self) -> None:
        """Discard the queued requests, which will not be answered."""
        while self._queue:
            self._application.finished(self._queue.popleft())

    def _answer(self, request: Request) -> None:
        self._active = request
        is_slow = request.is_slow
        answer = request.response or self._application.answer(
            request, partial(self.reserve, request)
        )
        if isinstance(answer, Response):
            self._limits.small_requests += not is_slow
            self._send(request, answer)
        else:
            self._limits.small_requests += not (is_slow or answer.is_slow)
            request.pending = answer
            answer.future.add_done_callback(lambda _: self._computed(request, answer))

    def _computed(self, request: Request, pending: "Pending") -> None:
        waits = self._awaits_turn or self.transport.is_closing()
        if pending.is_slow and not (waits or pending.future.cancelled()):
            self._convert = partial(self._respond, request, pending)
            self._await_turn()
        else:
            self._respond(request, pending)

    def _respond(self, request: Request, pending: "Pending") -> None:
        # `pending` refers to the request. The reference cycle would keep both, and the outputs, in
        # memory for a long time.
        request.pending = None
        response = self._application.respond(request, pending)
        if response is None or self.transport.is_closing():
            self._application.finished(request)
        else:
            self._send(request, response)
            self._advance()

    def _send(self, request: Request, response: Response) -> None:
        self._active = None
        self.since = time.monotonic()
        self._served += 1
        last = self._input_ended and not self._queue
        close = request.close or last or self._application.draining
        self._output.write(response.encode(request, close))
        self._application.finished(request, response.status)
        if response.status < 400:
            self._limits.succeeded(self)
        if self._output.paused:
            self._unsent += request.charged
        else:
            self._limits.release(self, min(request.charged, self.charged))
        if not close:
            return
        self._input_ended, self._lingering = True, True
        self._output.finish(response.size)
        self._abandon_queued()
        self._may_send_more = request.response is not None or self._reading is not None
        if not self._output.paused:
            self._end()

    def _end(self) -> None:
        """Close the connection, or only one direction if the client may still be sending.

        If the response must be delivered first, try again later.
        """
        if self.transport.is_closing():
            return
        if self._output.awaits_delivery:
            asyncio.get_running_loop().call_later(DELIVERY_POLL_SECONDS, self._end)
        elif not self._may_send_more:
            self.transport.close()
        else:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._resume_reading()
