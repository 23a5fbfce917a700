from typing import Any

import pynvml
import pytest

from notebooks.gpus import Gpus


def library(monkeypatch: pytest.MonkeyPatch, *activity: int | None) -> None:
    """A library that reports these percentages; None for a GPU that reports none."""

    def utilization(handle: int) -> Any:
        percentage = activity[handle]
        if percentage is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return pynvml.c_nvmlUtilization_t(percentage, 0)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(activity))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", utilization)


@pytest.mark.parametrize(
    ("activity", "busy"),
    [((0, 0), False), ((0, 1), True), ((None,), False), ((None, 100), True), ((), False)],
)
def test_one_gpu_that_computes_is_activity(
    activity: tuple[int | None, ...], busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(monkeypatch, *activity)
    gpus = Gpus()
    assert len(gpus) == len(activity)
    assert gpus.busy() is busy


def test_without_a_driver_no_gpu_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert not Gpus().busy()
