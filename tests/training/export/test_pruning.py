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
    kept = torch.cat([smaller[index].weight.detach().flatten() for index in (0, 3)])
    assert share_of_zeros(smaller) == pytest.approx(share, abs=1 / len(weights))
    assert torch.equal(kept[kept != 0], weights[kept != 0])
    if (kept != 0).any():
        assert weights[kept == 0].abs().max() <= weights[kept != 0].abs().min()


def test_biases_and_norms_and_the_original_model_are_not_pruned() -> None:
    model = network()
    smaller = pruned(model, 0.5)
    assert smaller.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        unchanged = name not in ("0.weight", "3.weight")
        assert torch.equal(smaller.state_dict()[name], tensor) == unchanged
    assert not share_of_zeros(model)


def test_pruned_layers_still_share_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    smaller = pruned(model, 0.5)
    assert int((smaller[0].weight == 0).sum()) == 8
    assert smaller[0].weight is smaller[1].weight


def test_manifest_states_sparsity_and_compressed_size(export: Export) -> None:
    _, manifest = export(prune=0.75)
    artifact = manifest.artifact("pruned")
    assert artifact.zeros == pytest.approx(0.75, abs=1e-3)
    assert artifact.relative_size == pytest.approx(1)
    assert artifact.compressed_size is not None
    assert artifact.compressed_size < 0.5
    assert artifact.metrics["accuracy"] > 0.85
