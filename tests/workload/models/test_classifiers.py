import pytest
import torch

from workload.catalog import MODELS
from workload.models import build
from workload.models.classifiers import MnistNet, SimpleCNN


@pytest.mark.parametrize("name", [name for name, known in MODELS.items() if known.shape])
def test_classifier_accepts_its_catalog_shape_and_returns_one_logit_per_class(name: str) -> None:
    shape = MODELS[name].shape
    assert shape is not None
    assert build(name, {}, 7, shape)(torch.zeros(3, *shape)).shape == (3, 7)


def test_first_linear_layers_match_the_output_size_of_the_convolutions() -> None:
    assert SimpleCNN().fc1.in_features == 64 * 6 * 6
    assert MnistNet().fc1.in_features == 32 * 12 * 12
