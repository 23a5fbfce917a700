"""What an engine tells while it works, for metrics."""

from inference.engine.interface import Served


class Observer:
    """Hears nothing of it; subclasses listen to what they count. All in the event loop."""

    def loaded(self, served: Served) -> None:
        """This model answers from now on."""

    def batch(self, samples: int, seconds: float) -> None:
        """A worker computed so many samples at once."""

    def worker_ended(self, reason: str) -> None:
        """A worker ended though nobody told it to, and is replaced."""
