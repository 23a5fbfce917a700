"""Progress line of a build: completed work, elapsed time and estimated remaining time."""

import os
import time
from collections.abc import Callable, Collection, Mapping

Report = Callable[[str], None]
"""Callback for each progress line."""

COMPILED_PER_SECOND = 150_000
"""Bytes of Go source that one processor compiles per second, averaged over all tools."""
DOWNLOAD_MINUTES = 1.0
"""Minutes to download and unpack the modules over a fast connection."""
LINK_COST = 10 * COMPILED_PER_SECOND
"""Cost of linking a program, in bytes of source that compile in the same time."""
EXPECTED_SPEED_SECONDS = 60.0
"""Time (s) after which the measured speed has the same weight as the expected speed."""


def announcement(programs: Collection[str], installed: Collection[str], cpu_minutes: float) -> str:
    """Return the line to print before a build: tools to build, estimated time, installed tools."""
    note = f"; already installed: {', '.join(sorted(installed))}" if installed else ""
    estimate = duration(60 * (cpu_minutes / (os.cpu_count() or 1) + DOWNLOAD_MINUTES))
    return f"building {', '.join(programs)} from Go modules, about {estimate}{note}"


class Meter:
    """Progress of a build. `packages` maps packages to the sizes of their sources in bytes."""

    def __init__(
        self, report: Report, packages: Mapping[str, int], programs: Collection[str]
    ) -> None:
        self._report = report
        self._sizes = {
            **packages,
            **dict.fromkeys((f"link {name}" for name in programs), LINK_COST),
        }
        self._done: set[str] = set()
        self._packages = len(packages)
        self._began = time.monotonic()

    def compiled(self, packages: Collection[str], current: str = "linking") -> None:
        """Mark packages as compiled, and report the progress and the current package."""
        self._done |= self._sizes.keys() & set(packages)
        done = sum(name.partition(" ")[0] != "link" for name in self._done)
        elapsed = clock(time.monotonic() - self._began)
        self._report(
            f"{done:,} of {self._packages:,} packages, {current}, {elapsed}, "
            f"about {duration(self.remaining_seconds())} left"
        )

    def linked(self, programs: Collection[str]) -> None:
        """Mark programs as linked."""
        self._done |= self._sizes.keys() & {f"link {name}" for name in programs}

    def remaining_seconds(self) -> float:
        """Return the estimated remaining time in seconds."""
        done = sum(self._sizes[name] for name in self._done)
        remaining = sum(self._sizes.values()) - done
        expected = COMPILED_PER_SECOND * (os.cpu_count() or 1)
        elapsed = time.monotonic() - self._began
        return (
            remaining
            * (elapsed + EXPECTED_SPEED_SECONDS)
            / (done + EXPECTED_SPEED_SECONDS * expected)
        )

    def end(self) -> None:
        """Report the duration of the build."""
        programs = len(self._sizes) - self._packages
        self._report(f"built {programs} tools in {clock(time.monotonic() - self._began)}")


def clock(seconds: float) -> str:
    """Return minutes and seconds, such as `3:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def duration(seconds: float) -> str:
    """Return a rounded duration, such as `12 min` or, below a minute and a half, `40 s`."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min"
