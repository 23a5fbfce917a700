import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.training.export.trained import Export
from training.export.compression import pruned, share_of_zeros


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))


@settings(max_examples=25)
@given(share=st.floats(0.01, 0.99))
def test_the_smallest_weights_of_the_whole_model_become_zero(share: float) -> None:
    model = network()
    smaller = pruned(model, share)
    weights = torch.cat([model[index].weight.detach().flatten() for index in (0, 3)])
    left = torch.cat([smaller[index].weight.detach().flatten() for index in (0, 3)])
    assert share_of_zeros(smaller) == pytest.approx(share, abs=1 / len(weights))
    assert torch.equal(left[left != 0], weights[left != 0])
    if (left != 0).any():
        assert weights[left == 0].abs().max() <= weights[left != 0].abs().min()


def test_biases_and_norms_stay_and_zeros_are_permanent() -> None:
    model = network()
    smaller = pruned(model, 0.5)
    assert smaller.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        stays = name not in ("0.weight", "3.weight")
        assert torch.equal(smaller.state_dict()[name], tensor) == stays
    assert not share_of_zeros(model)


def test_quantized_layers_keep_sharing_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    smaller = pruned(model, 0.5)
    assert int((smaller[0].weight == 0).sum()) == 8
    assert smaller[0].weight is smaller[1].weight


def test_the_manifest_has_the_sparsity_and_its_savings(export: Export) -> None:
    _, manifest = export(prune=0.75)
    artifact = manifest.artifact("pruned")
    assert artifact.zeros == pytest.approx(0.75, abs=1e-3)
    assert artifact.relative_size == pytest.approx(1)
    assert artifact.compressed_size is not None
    assert artifact.compressed_size < 0.5
    assert artifact.metrics["accuracy"] > 0.85
