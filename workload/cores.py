"""Number of CPU cores that a process may use. This module does not import torch."""

import math
import os
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
_QUOTAS: Final = (
    ("cpu.max",),
    ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"),
)
"""Files with the CPU time (µs) per period and the period (µs), in cgroup v2 and v1."""


def available_cores() -> int:
    """Return the number of cores that this process may use.

    The number is the size of the affinity mask or the CPU limit of the container, whichever is
    smaller. `os.sched_getaffinity` and torch ignore the limit; if a process runs more threads than
    the limit allows, they are throttled.
    """
    cores = len(os.sched_getaffinity(0))
    limit = _limit()
    return cores if limit is None else min(cores, math.ceil(limit))


def _limit() -> float | None:
    for files in _QUOTAS:
        try:
            texts = [(CGROUPS / name).read_text() for name in files]
        except OSError:
            continue
        quota, period = " ".join(texts).split()
        # Without a limit, the quota is "max" in v2 and -1 in v1.
        if quota.isdecimal():
            return int(quota) / int(period)
    return None
