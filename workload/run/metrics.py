"""Prometheus metrics under the names that the platform's alerts and dashboards read."""

import threading
from collections.abc import Mapping
from typing import SupportsFloat
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from workload.exit_codes import FatalError


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def serve(port: int, run: str, values: Mapping[str, SupportsFloat]) -> None:
    """Serve `training_NAME` for each value until exit. Raises FatalError if the port is in use."""

    def page(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        name = run.replace("\\", r"\\").replace('"', r"\"")
        lines = [f'training_info{{run="{name}"}} 1']
        lines += [f"training_{name} {float(value)}" for name, value in dict(values).items()]
        start("200 OK", [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")])
        return ["".join(f"{line}\n" for line in lines).encode()]

    try:
        server = make_server("", port, page, handler_class=_Quiet)
    except OSError as error:
        raise FatalError(f"metrics port {port} is not available: {error.strerror}") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
