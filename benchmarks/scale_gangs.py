"""What was seen of gangs while their pods got nodes (pure)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Gangs:
    """Bindings by gang, in the order in which they were seen; `size` pods are a whole gang.

    A pod is bound by a request of its own, so even of a gang that is placed as one the bindings
    come one after the other. What is counted is how long a part of it stood alone.
    """

    size: int
    bound: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    moments: int = 0
    """News of any kind: each is a moment at which all gangs were looked at."""

    def note(self, gang: str, pod: str, node: str | None, moment: float) -> None:
        """News of a pod, at a moment in seconds of one clock."""
        self.moments += 1
        if node is not None:
            self.bound[gang].setdefault(pod, moment)

    @property
    def count(self) -> int:
        """Pods that have a node."""
        return sum(len(pods) for pods in list(self.bound.values()))

    def alone(self, until: float) -> list[float]:
        """Seconds for which a part of each gang had nodes and the rest had none.

        Of a gang that is not whole yet, the seconds until now.
        """
        found = []
        for pods in list(self.bound.values()):
            moments = list(pods.values())
            end = max(moments) if len(moments) >= self.size else until
            found.append(end - min(moments))
        return found

    def summary(self, began: float, submitted: float, longest: float) -> dict[str, Any]:
        """Rates and partial gangs of a round that began and was submitted at these moments.

        `longest` is for how many seconds the bindings of one gang may be under way.
        """
        moments = sorted(moment for pods in self.bound.values() for moment in pods.values())
        last = moments[-1]
        alone = self.alone(last)
        return {
            "pods": len(moments),
            "secondsToSubmit": round(submitted - began, 3),
            "secondsToFirstBinding": round(moments[0] - began, 3),
            "secondsToLastBinding": round(last - began, 3),
            "podsPerSecond": round(len(moments) / (last - began), 1),
            "podsPerSecondFromFirstBinding": round(len(moments) / max(last - moments[0], 1e-3), 1),
            "momentsObserved": self.moments,
            "partialGangs": sum(seconds > longest for seconds in alone),
            "secondsFromFirstToLastPodOfAGang": {
                "median": round(statistics.median(alone), 3),
                "most": round(max(alone), 3),
            },
        }
