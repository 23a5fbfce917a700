"""Idle time of a notebook, with the limits for the warning and the suspension."""

from dataclasses import dataclass

_WARNING_SECONDS = 600.0
"""Time (s) between the warning and the suspension. If `Idle.limit` is short, the warning appears
after half of it."""


@dataclass(frozen=True)
class Idle:
    """Idle time of a notebook, which is suspended after `limit` seconds."""

    seconds: float
    limit: float

    @property
    def remaining(self) -> float:
        """Seconds until the suspension."""
        return max(self.limit - self.seconds, 0.0)

    @property
    def warning_due(self) -> bool:
        """True if the user should be warned."""
        return self.remaining <= min(_WARNING_SECONDS, self.limit / 2)

    @property
    def expired(self) -> bool:
        """True if the notebook should be suspended now."""
        return self.seconds >= self.limit
