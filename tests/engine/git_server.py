"""Git over HTTP on the loopback interface, served by Git's CGI program."""

import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit


@contextmanager
def git_server(repositories: Path, as_proxy: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve the bare repositories in a directory and yield its URL.

    With `as_proxy`, the server is also an HTTPS proxy that impersonates every host. Pulumi rejects
    plain HTTP, and a virtual environment cannot be created in a plugin directory whose name
    contains a port.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            variables = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(repositories),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "PATH_INFO": url.path,
                "QUERY_STRING": url.query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "REMOTE_USER": "tester",
            }
            done = subprocess.run(
                ["git", "http-backend"], env=variables, input=body, capture_output=True, check=True
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_CONNECT(self) -> None:
            assert as_proxy is not None
            self.send_response(200)
            self.end_headers()
            self.request = as_proxy.wrap_socket(self.request, server_side=True)
            self.setup()
            self.close_connection = False

        def finish(self) -> None:
            super().finish()
            self.request.close()

        do_POST = do_GET  # noqa: N815  http.server calls it by this name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
