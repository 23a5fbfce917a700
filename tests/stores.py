"""An object store whose responses a test can delay, reject or damage."""

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCESS = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_SECRET_ACCESS_KEY": "correct-horse",
    "AWS_REGION": "us-east-1",
}
Fault = Callable[[str, str], int | None]
"""Callback with the method and path of a request; returns a status, or None to forward it."""


@contextlib.contextmanager
def proxy(server: str, fault: Fault) -> Iterator[str]:
    """Forward requests to `server` (host:port), except for faults; yield the URL."""

    class Forward(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Suppress the log."""

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if status := fault(self.command, self.path):
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            # The signature covers the host that the client named.
            upstream = http.client.HTTPConnection(server, timeout=60)
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection"):
                    self.send_header(name, value)
            if answer.getheader("Content-Length") is None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            upstream.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as listening:
        listening.daemon_threads = True
        listening.block_on_close = False
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.server_address[1]}"
        finally:
            listening.shutdown()
            thread.join()
