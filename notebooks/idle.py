"""Warning and suspension of a notebook without activity."""

from dataclasses import dataclass

_WARNING_SECONDS = 600.0
"""Time (s) before the suspension at which the user is warned, or half of `Idle.limit` if that is
shorter."""


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
    def warned(self) -> bool:
        """True if the user should be warned."""
        return self.remaining <= min(_WARNING_SECONDS, self.limit / 2)

    @property
    def over(self) -> bool:
        """True if the notebook should be suspended now."""
        return self.seconds >= self.limit
