"""Jupyter Server extension that stops an idle server to free its GPUs.

The server counts as active while a kernel, a terminal or a GPU is active. Jupyter Server's own
setting, `shutdown_no_activity_timeout`, ignores GPUs, shows no warning, and counts requests from
every open browser tab as activity.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.extension.application import ExtensionApp
from tornado import web
from tornado.ioloop import PeriodicCallback
from traitlets import Float

from notebooks.gpus import Gpus
from notebooks.idle import Idle

_MAX_CHECK_SECONDS = 15.0


class Idleness(ExtensionApp):
    """Timer that stops the server when it has been idle for too long."""

    name = "notebooks"
    limit_seconds = Float(
        3600.0, help="Time (s) without activity after which the server stops"
    ).tag(config=True)

    def initialize_handlers(self) -> None:
        """Add the endpoint that JupyterLab polls for the warning, and start the periodic check."""
        self._gpus = Gpus()
        self._last_active = datetime.now(UTC)
        self._warned = False
        self.handlers.append((r"/gpu-platform/idle", _IdleHandler, {"idleness": self}))
        interval = min(_MAX_CHECK_SECONDS, self.limit_seconds / 20)
        self._callback = PeriodicCallback(self._evaluate, interval * 1000)
        self._callback.start()
        self.log.info(
            "the server stops after %g s without kernel, terminal or GPU activity (%d GPUs)",
            self.limit_seconds,
            len(self._gpus),
        )

    @property
    def idle(self) -> Idle:
        """Time since the last activity, and the limit."""
        now = datetime.now(UTC)
        self._last_active = max(self._last_active, *self._activity_times(now))
        return Idle((now - self._last_active).total_seconds(), self.limit_seconds)

    def _activity_times(self, now: datetime) -> Iterator[datetime]:
        assert self.serverapp is not None  # noqa: S101  set before the handlers
        kernels = self.serverapp.kernel_manager
        for kernel_id in kernels.list_kernel_ids():
            kernel = kernels.get_kernel(kernel_id)
            busy = getattr(kernel, "execution_state", None) == "busy"
            yield now if busy else getattr(kernel, "last_activity", self._last_active)
        manager = self.settings.get("terminal_manager")
        for terminal in manager.terminals.values() if manager else ():
            yield getattr(terminal, "last_activity", self._last_active)
        yield now if self._gpus.is_busy() else self._last_active

    def _evaluate(self) -> None:
        idle = self.idle
        if idle.expired:
            self.log.warning("stopping the server after %g s without activity", idle.limit)
            self._callback.stop()
            assert self.serverapp is not None  # noqa: S101
            self.serverapp.stop()
        elif idle.warning_due and not self._warned:
            self.log.warning(
                "idle: the server stops in %.0f s unless there is activity", idle.remaining
            )
        self._warned = idle.warning_due


class _IdleHandler(JupyterHandler):
    """Endpoint that returns the time (s) until the suspension, or null if no warning is due."""

    def initialize(self, idleness: Idleness) -> None:
        self._idleness = idleness

    @web.authenticated
    def get(self) -> None:
        idle = self._idleness.idle
        self.finish({"suspended_in": round(idle.remaining) if idle.warning_due else None})


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "notebooks.activity", "app": Idleness}]
