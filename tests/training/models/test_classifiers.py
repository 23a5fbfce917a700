import pytest
import torch

from training.catalog import MODELS as KNOWN
from training.models import MODELS, MnistNet, SimpleCNN


@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_its_input_shape_and_gives_a_logit_a_class(name: str) -> None:
    model = MODELS[name](7)
    assert model(torch.zeros(3, *model.input_shape)).shape == (3, 7)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_what_the_catalog_says(name: str) -> None:
    assert MODELS[name].input_shape == KNOWN[name].shape


def test_the_first_linear_layers_fit_what_the_convolutions_leave() -> None:
    assert SimpleCNN().fc1.in_features == 64 * 6 * 6
    assert MnistNet().fc1.in_features == 32 * 12 * 12
