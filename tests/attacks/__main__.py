"""Attack the model server: `make test-attacks`, some minutes; `ATTACK=text` selects by name.

During each attack, callers send requests and probes arrive. Prints one line per attack and exits
with 1 unless all goals are met: callers keep 90 % of their rate, every probe is answered within a
second, memory returns to within 20 % of its size before, and answers have the expected status.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.attacks.attacks import ATTACKS, run
from tests.attacks.target import Attacked, Callers, attacked, start_callers

SECONDS: Final = 10.0
USUAL_SECONDS: Final = 3.0
SHARE: Final = 0.9
GROWTH: Final = 1.2
SETTLE_SECONDS: Final = 20.0
SPARE: Final = 24 * 2**20
"""Bytes that memory may grow in addition: the allocator keeps pages after the first requests."""

_spawn: Final = multiprocessing.get_context("spawn")


def measure(server: Attacked, name: str) -> list[str]:
    """Return the goals that the server misses during an attack."""
    usual = start_callers(server.port, USUAL_SECONDS)().answered / USUAL_SECONDS
    before = server.memory()
    ours, theirs = _spawn.Pipe(duplex=False)
    attacker = _spawn.Process(target=run, args=(name, server.port, SECONDS, theirs), daemon=True)
    attacker.start()
    # The process takes a moment to start.
    time.sleep(2)
    callers = start_callers(server.port, SECONDS)
    slowest, lost, peak = 0.0, 0, before
    started, busy = time.monotonic(), server.busy()
    while not ours.poll(0.1):
        status, seconds = server.probe()
        lost += status != 200
        slowest = max(slowest, seconds)
        peak = max(peak, server.memory())
    used = (server.busy() - busy) / (time.monotonic() - started)
    wrong = ours.recv()
    attacker.join()
    found: Callers = callers()
    deadline = time.monotonic() + SETTLE_SECONDS
    limit = before * GROWTH + SPARE
    while (after := server.memory()) > limit and time.monotonic() < deadline:
        time.sleep(0.5)
    # The rate before and after: other programs may share the machine.
    later = start_callers(server.port, USUAL_SECONDS)().answered / USUAL_SECONDS
    share = found.answered / SECONDS / min(usual, later)
    missed = [wrong] if wrong else []
    if share < SHARE:
        missed.append(f"callers: {share:.0%} of their rate, {found.codes}")
    if lost:
        missed.append(f"{lost} probes lost")
    if after > limit:
        missed.append(f"memory stays at {after >> 20} MiB, {before >> 20} before")
    verdict = "MISSED" if missed else "ok"
    print(
        f"{verdict:7}{name:40}{share:6.0%}{used:6.0%}{slowest * 1000:7.0f} ms"
        f"{before >> 20:6}{peak >> 20:6}{after >> 20:6} MiB  {'; '.join(missed)}",
        flush=True,
    )
    return missed


def main() -> int:
    """Run the selected attacks and return the exit code."""
    selected = [name for name in ATTACKS if os.environ.get("ATTACK", "") in name]
    failed = 0
    with tempfile.TemporaryDirectory() as folder, attacked(Path(folder)) as server:
        print(f"{'':7}{'attack':40}{'rate':>6}{'CPU':>6}{'probe':>10}{'before, peak, after':>21}")
        start_callers(server.port, 3)()
        for name in selected:
            failed += bool(measure(server, name))
    print(f"{len(selected) - failed} of {len(selected)} attacks withstood")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
