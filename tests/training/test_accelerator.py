import pytest
import torch
from torch import nn

from training import accelerator
from training.config import TrainingConfig

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_the_cpu_computes_in_fp32_by_default(precision: str) -> None:
    config = TrainingConfig.model_validate({"precision": precision})
    assert accelerator.precision_of(config, CPU) == "fp32"
    assert accelerator.report(config, CPU, nn.Linear(1, 1)) == {"precision": "fp32"}
    assert "precision" not in config.result_settings()


def test_a_configured_precision_is_kept() -> None:
    config = TrainingConfig.model_validate({"precision": "bf16"})
    assert accelerator.precision_of(config, CPU) == "bf16"
    assert config.result_settings()["precision"] == "bf16"


def test_a_cpu_has_no_known_peak_and_no_changed_defaults() -> None:
    before = torch.get_float32_matmul_precision()
    accelerator.use(CPU)
    assert torch.get_float32_matmul_precision() == before
    assert accelerator.peak_flops(CPU) is None


@pytest.mark.parametrize(
    ("network", "device", "parallel", "chosen"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cuda", "ddp", True),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cuda", "fsdp", False),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cpu", "ddp", False),
        (nn.Sequential(nn.Linear(1, 1)), "cuda", "ddp", False),
    ],
)
def test_convolutions_of_a_gpu_have_channels_last_unless_they_are_sharded(
    network: nn.Module, device: str, parallel: str, chosen: bool
) -> None:
    config = TrainingConfig.model_validate({"parallel": parallel})
    assert accelerator.is_channels_last(network, config, torch.device(device)) == chosen
