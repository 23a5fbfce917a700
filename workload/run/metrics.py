"""Prometheus metrics under the names that the platform's alerts and dashboards read."""

import http.server
import threading
from collections.abc import Mapping
from typing import Final, SupportsFloat

from workload.exit_codes import FatalError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def serve(port: int, run: str, values: Mapping[str, SupportsFloat]) -> None:
    """Serve `training_NAME` for each value until exit. Raises FatalError if the port is in use."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = run.replace("\\", r"\\").replace('"', r"\"")
            lines = [f'training_info{{run="{name}"}} 1']
            lines += [f"training_{name} {float(value)}" for name, value in dict(values).items()]
            body = "".join(f"{line}\n" for line in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = http.server.ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        raise FatalError(f"metrics port {port} is not available: {error.strerror}") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
