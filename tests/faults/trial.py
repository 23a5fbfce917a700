"""One fault, from its injection to its row in the table."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.cluster.load import Load, Seen
from tests.faults.gangs import Gang
from tests.faults.losses import repeated, standstill
from tests.faults.table import Row, Table


@dataclass
class Trial:
    """Observations of a fault; `began` and `since` are seconds of time.time()."""

    fault: str
    load: Load
    before: Seen
    began: float = field(default_factory=time.time)
    since: float = field(default_factory=time.time)
    gang: Gang | None = None
    new_gang: float | None = None

    @property
    def slug(self) -> str:
        """Part of the names of Kubernetes objects."""
        return re.sub(r"[^a-z0-9]+", "-", self.fault.lower())[:24].strip("-")

    def begin(self, gang: Gang) -> None:
        """Start the fault and observe this gang."""
        self.gang, self.before, self.since = gang, self.load.seen(), time.time()

    def check_requests(self, lost: Callable[[dict[str, int]], bool]) -> None:
        """Assert that `lost` permits the number and kinds of failed requests."""
        failed = self.load.since(self.before).failed
        assert lost(failed), failed

    def row(self, verdict: str) -> Row:
        """Return the current row."""
        events = self.gang.timeline.events() if self.gang else []
        seen = self.load.since(self.before)
        return Row(
            self.fault,
            repeated(events, self.since),
            standstill(events, self.since),
            seen.failed,
            seen.answered,
            self.new_gang,
            verdict,
            time.time() - self.began,
        )


@contextlib.contextmanager
def recorded(fault: str, load: Load, table: Table) -> Iterator[Trial]:
    """Add the fault's row at the end; the fault passes if nothing was raised."""
    trial, verdict = Trial(fault, load, load.seen()), "yes"
    try:
        yield trial
    except KeyboardInterrupt:
        verdict = ""
        raise
    except BaseException as error:
        verdict = f"no: {error or type(error).__name__}"
        raise
    finally:
        table.add(trial.row(verdict))
