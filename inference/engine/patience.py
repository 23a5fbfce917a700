"""When workers die: how soon they are replaced, and when requests should stay away."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Limits:
    """Seconds, and deaths in a row."""

    deaths: int = 3
    """So many make the server unready."""
    calm: float = 60.0
    """After so long without a death they are forgotten."""
    first_delay: float = 1.0
    """Before a worker is replaced then; it doubles with each death."""
    longest_delay: float = 30.0


USUAL: Final = Limits()


class Patience:
    """Counts deaths that follow one another."""

    def __init__(self, limits: Limits = USUAL) -> None:
        self._limits = limits
        self._deaths = 0
        self._last = 0.0
        self._why = ""

    def died(self, now: float, why: str) -> float:
        """Note a death; gives the seconds to wait before the worker is replaced."""
        self._forget(now)
        self._deaths += 1
        self._last, self._why = now, why
        over = self._deaths - self._limits.deaths
        if over < 0:
            return 0.0
        return min(self._limits.longest_delay, self._limits.first_delay * 2.0 ** min(over, 30))

    def reason(self, now: float) -> str:
        """Why requests should not come; empty when they should."""
        self._forget(now)
        if self._deaths < self._limits.deaths:
            return ""
        return f"workers died {self._deaths} times in a row: {self._why}"

    def _forget(self, now: float) -> None:
        if now - self._last > self._limits.calm:
            self._deaths = 0
