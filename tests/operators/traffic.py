"""Traffic over time: the weight of a canary, and the responses of each version."""

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.cluster.background import Background
from tests.cluster.load import Load
from tests.cluster.platform import Platform

SECONDS = 2.0
COLORS = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b")
FAILED = "#d62728"


@dataclass(frozen=True)
class Sample:
    """The weight of the canary, and the number of responses so far."""

    seconds: float
    weight: int
    versions: dict[str, int]
    failed: int


@dataclass
class Traffic(Background):
    """Samples of the route and the load, and the changes of the stack."""

    platform: Platform
    load: Load
    samples: list[Sample] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()

    def mark(self, text: str) -> None:
        """Add a label at the current time."""
        self.marks.append((time.monotonic() - self._begun, text))

    def _work(self) -> None:
        while not self._ending.wait(SECONDS):
            # The API server may be briefly unavailable.
            with contextlib.suppress(AssertionError):
                weight = weights(self.platform).get("digits-canary", 0)
                seen = self.load.seen()
                failed = sum(seen.failed.values())
                now = time.monotonic() - self._begun
                self.samples.append(Sample(now, weight, dict(seen.versions), failed))

    def save(self, path: Path) -> None:
        found = {"samples": [asdict(each) for each in self.samples], "marks": self.marks}
        path.write_text(json.dumps(found))


def weights(platform: Platform) -> dict[str, int]:
    """Return the weights of the route by service."""
    route = platform.kubectl("get", "httproute", "digits", "-n", "ml-dev")
    (rule,) = route["spec"]["rules"]
    return {each["name"]: each["weight"] for each in rule["backendRefs"]}


def draw(traffic: Traffic, names: dict[str, str], path: Path) -> None:
    """Plot the canary's weight above each version's response rate; `names` labels the versions."""
    mpl.rcParams["svg.hashsalt"] = "traffic"  # makes the file reproducible
    figure = Figure(figsize=(9, 5), layout="constrained")
    weight, answers = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2))
    samples = traffic.samples
    at = [each.seconds for each in samples]
    weight.step(at, [each.weight for each in samples], where="post", color="black", lw=1.2)
    weight.set_ylabel("weight of the canary, %", fontsize="small")
    weight.set_ylim(0, 50)
    answered = [version for version in names if samples[-1].versions.get(version)]
    for version, color in zip(answered, COLORS, strict=False):
        counts = [each.versions.get(version, 0) for each in samples]
        answers.plot(at[1:], _rates(at, counts), color=color, lw=1.2, label=names[version])
    failed = _rates(at, [each.failed for each in samples])
    answers.plot(at[1:], failed, color=FAILED, lw=1.2, label="failed")
    answers.set_ylabel("responses per second", fontsize="small")
    answers.set_xlabel("seconds", fontsize="small")
    answers.set_ylim(0, answers.get_ylim()[1] * 1.15)
    answers.legend(fontsize="small", frameon=False, ncols=len(answered) + 1, loc="upper left")
    for seconds, text in traffic.marks:
        for axes in (weight, answers):
            axes.axvline(seconds, color="black", lw=0.5, ls=":")
        weight.annotate(text, (seconds, 49), rotation=90, ha="right", va="top", fontsize="x-small")
    for axes in (weight, answers):
        axes.grid(True, axis="y", lw=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def _rates(at: Sequence[float], counts: Sequence[int]) -> list[float]:
    pairs = zip(at, at[1:], counts, counts[1:], strict=False)
    return [(after - before) / (now - then) for then, now, before, after in pairs]
