"""Activity of the pod's GPUs, as reported by the NVIDIA Management Library (NVML)."""

import pynvml


class Gpus:
    """The GPUs of the pod. Empty if NVML or the driver is missing."""

    def __init__(self) -> None:
        self._handles = []
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        except pynvml.NVMLError:
            return

    def __len__(self) -> int:
        return len(self._handles)

    def is_busy(self) -> bool:
        """Return whether any GPU was busy during roughly the last second.

        A GPU whose activity is unknown, such as a MIG device, counts as idle.
        """
        return any(map(_utilization, self._handles))


def _utilization(handle: object) -> int:
    try:
        return int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except pynvml.NVMLError:
        return 0
