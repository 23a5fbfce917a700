"""Delays before dead workers are replaced."""

from typing import Final

MAX_DEATHS: Final = 3
"""Number of consecutive deaths, without a finished batch in between, after which the server is
unready."""

RESET_SECONDS: Final = 60.0
"""Time (s) without a death after which earlier deaths no longer count."""

MAX_DELAY: Final = 30.0
"""Maximum delay (s) before a replacement. Delays start at 1 s after `MAX_DEATHS` deaths, and double
with each additional death."""


class Backoff:
    """Counter of consecutive worker deaths."""

    def __init__(self) -> None:
        self._deaths = 0
        self._ignored_retry = False
        """True if a death caused by a retried request was ignored, and all deaths since then were
        also caused by retried requests."""
        self._last = self._until = 0.0
        self._last_reason = ""

    def died(self, now: float, reason: str, *, retried: bool = False) -> float:
        """Count a death and return the seconds to wait before the worker is replaced.

        If a `retried` request kills a second worker, only the first death counts, because the
        request is probably at fault. If other requests of its batch also kill workers, those deaths
        count, because no single request is at fault.
        """
        self._reset_if_expired(now)
        if retried and not self._ignored_retry:
            self._ignored_retry = True
            return 0.0
        self._ignored_retry = self._ignored_retry and retried
        self._deaths += 1
        self._last, self._last_reason = now, reason
        over = self._deaths - MAX_DEATHS
        delay = min(MAX_DELAY, 2.0 ** min(over, 30)) if over >= 0 else 0.0
        self._until = now + delay
        return delay

    def succeeded(self) -> None:
        """Forget earlier deaths. A finished batch shows that only certain requests caused them."""
        self._deaths = 0

    def reason(self, now: float) -> str:
        """Return the reason why the server is unready; empty if it is ready."""
        self._reset_if_expired(now)
        # Once the delay is over, the server is ready again; another death causes a longer delay.
        if self._deaths < MAX_DEATHS or now > self._until:
            return ""
        return f"workers died {self._deaths} times in a row: {self._last_reason}"

    def _reset_if_expired(self, now: float) -> None:
        if now - self._last > RESET_SECONDS:
            self._deaths = 0
