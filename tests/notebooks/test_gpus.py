from typing import Any

import pynvml
import pytest

from notebooks.gpus import Gpus


def mock_nvml(monkeypatch: pytest.MonkeyPatch, *utilizations: int | None) -> None:
    """Mock NVML with these utilization percentages; None for a GPU that does not report one."""

    def utilization(handle: int) -> Any:
        percentage = utilizations[handle]
        if percentage is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return pynvml.c_nvmlUtilization_t(percentage, 0)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(utilizations))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", utilization)


@pytest.mark.parametrize(
    ("utilizations", "busy"),
    [((0, 0), False), ((0, 1), True), ((None,), False), ((None, 100), True), ((), False)],
)
def test_notebook_is_busy_if_any_gpu_is_active(
    utilizations: tuple[int | None, ...], busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_nvml(monkeypatch, *utilizations)
    gpus = Gpus()
    assert len(gpus) == len(utilizations)
    assert gpus.is_busy() is busy


def test_no_gpu_is_busy_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert not Gpus().is_busy()
