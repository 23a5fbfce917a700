"""How full a pod's shared memory is: a full one ends as a bus error, without a word."""

import os
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from training.preflight import SHARED_MEMORY


class SharedMemory(Collector):
    """Looked at when somebody asks; nothing is told where there is none."""

    def __init__(self, folder: Path = SHARED_MEMORY) -> None:
        self._folder = folder

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """For Prometheus, in bytes. See statvfs(3)."""
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return []
        size = found.f_blocks * found.f_frsize
        used = size - found.f_bavail * found.f_frsize
        return [
            GaugeMetricFamily("training_shm_size_bytes", "Of the pod's shared memory", size),
            GaugeMetricFamily("training_shm_used_bytes", "Of the pod's shared memory", used),
        ]
