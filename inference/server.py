"""uvicorn, ended as a load balancer needs it: unready, still answering for a moment, then gone."""

import asyncio
from types import FrameType

import uvicorn

from inference.app import build_app
from inference.service import Service


class DrainingServer(uvicorn.Server):
    """Serves until the first SIGTERM or SIGINT and drains; a second one ends it at once."""

    def __init__(self, service: Service) -> None:
        config = service.config
        super().__init__(
            uvicorn.Config(
                build_app(service),
                host=config.host,
                port=config.port,
                log_level="warning",
                access_log=False,
                lifespan="on",
                timeout_graceful_shutdown=config.drain_seconds,
            )
        )
        self._service = service
        self._loop = asyncio.new_event_loop()

    def run_until_signal(self) -> None:
        """Serve, and return when all that was in flight is answered or `drain_seconds` are over.

        Exits with a code other than 0 when it cannot listen.
        """
        self._loop.run_until_complete(self.serve())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain, in place of stopping at once and ending by the signal itself."""
        if self._service.draining:
            self.should_exit = self.force_exit = True
            return
        self._service.drain()
        self._loop.call_soon_threadsafe(
            self._loop.call_later, self._service.config.notice_seconds, self._stop
        )

    def _stop(self) -> None:
        self.should_exit = True
