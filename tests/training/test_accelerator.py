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
    assert accelerator.chosen_defaults(config, CPU, nn.Linear(1, 1)) == {"precision": "fp32"}
    assert "precision" not in config.result_settings()


def test_configured_precision_is_used() -> None:
    config = TrainingConfig.model_validate({"precision": "bf16"})
    assert accelerator.precision_of(config, CPU) == "bf16"
    assert config.result_settings()["precision"] == "bf16"


def test_cpu_has_no_known_peak_and_keeps_pytorchs_defaults() -> None:
    before = torch.get_float32_matmul_precision()
    accelerator.configure(CPU)
    assert torch.get_float32_matmul_precision() == before
    assert accelerator.peak_flops(CPU) is None


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA RTX A1000", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
    ],
)
def test_peak_is_known_only_for_an_exact_gpu_model(
    name: str, model: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    expected = accelerator.PEAK_FLOPS[model] if model else None
    assert accelerator.peak_flops(torch.device("cuda")) == expected


@pytest.mark.parametrize(
    ("network", "device", "parallel", "is_used"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cuda", "ddp", True),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cuda", "fsdp", False),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), "cpu", "ddp", False),
        (nn.Sequential(nn.Linear(1, 1)), "cuda", "ddp", False),
    ],
)
def test_channels_last_is_used_for_unsharded_convolutions_on_a_gpu(
    network: nn.Module, device: str, parallel: str, is_used: bool
) -> None:
    config = TrainingConfig.model_validate({"parallel": parallel})
    assert accelerator.is_channels_last(network, config, torch.device(device)) == is_used
