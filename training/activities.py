"""What a process's time goes to: the share of `step` is what its GPU is there for."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

Activity = Literal["start", "data", "step", "checkpoint", "evaluation", "export", "other"]


class Activities(Collector):
    """Seconds by activity, of which there is one at any time: together they are all that passed.

    Plain numbers until somebody asks, since `switch` is called several times in every step.
    """

    def __init__(self) -> None:
        self._seconds: dict[Activity, float] = dict.fromkeys(get_args(Activity), 0.0)
        self._current: Activity = "start"
        self._since = time.perf_counter()

    def switch(self, activity: Activity) -> Activity:
        """Go over to another activity; gives the one that it was until now."""
        now, before = time.perf_counter(), self._current
        self._seconds[before] += now - self._since
        self._current, self._since = activity, now
        return before

    @contextlib.contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        """Count the time inside for `activity`, and not for the one around it."""
        around = self.switch(activity)
        try:
            yield
        finally:
            self.switch(around)

    def collect(self) -> Iterable[CounterMetricFamily]:
        """For Prometheus; the time of the current activity up to now is in it."""
        family = CounterMetricFamily(
            "training_seconds",
            "Where this process's time goes; all activities together are all of it",
            labels=["activity"],
        )
        current, since = self._current, self._since
        for activity, seconds in self._seconds.copy().items():
            more = time.perf_counter() - since if activity == current else 0.0
            family.add_metric([activity], seconds + more)
        return [family]
