import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from workload.catalog import MODELS as KNOWN
from workload.catalog import Option, input_shape
from workload.configuration import ConfigurationError
from workload.models import build

SMALL: dict[str, dict[str, Option]] = {
    "resnet18": {"image_size": 65},
    "resnet50": {"image_size": 65},
    "gpt": {"context": 16, "layers": 2, "heads": 2, "width": 32},
}
"""Options that make a model small enough for fast tests."""


def model_and_inputs(name: str) -> tuple[nn.Module, Tensor]:
    """Return a model and a batch of eight inputs for it."""
    options = SMALL.get(name, {})
    shape = input_shape(name, options)
    assert shape is not None
    torch.manual_seed(0)
    model = build(name, options, 10, shape)
    inputs = torch.randint(10, (8, *shape)) if name == "gpt" else torch.rand(8, *shape)
    return model, inputs


@pytest.fixture(scope="module", params=KNOWN)
def shared(request: pytest.FixtureRequest) -> tuple[str, nn.Module, Tensor]:
    """A name, its model in evaluation mode and its inputs. Tests must not modify the model."""
    model, inputs = model_and_inputs(request.param)
    return request.param, model.eval(), inputs


def test_every_catalog_model_returns_its_outputs(shared: tuple[str, nn.Module, Tensor]) -> None:
    name, model, inputs = shared
    logits = model(inputs)
    assert logits.shape == ((8, 16, 10) if name == "gpt" else (8, 10))
    assert logits.dtype == torch.float32


@pytest.mark.parametrize("name", KNOWN)
def test_every_model_overfits_one_batch(name: str) -> None:
    model, inputs = model_and_inputs(name)
    targets = torch.arange(8) % 10
    if name == "gpt":
        targets = inputs.roll(-1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(4 if name.startswith("resnet") else 30):
        logits = model(inputs)
        loss = cross_entropy(logits.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses) < 0.6 * losses[0]


def test_same_seed_gives_the_same_weights(shared: tuple[str, nn.Module, Tensor]) -> None:
    name, model, _ = shared
    first, second = model.state_dict(), model_and_inputs(name)[0].state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_every_model_can_be_copied(shared: tuple[str, nn.Module, Tensor]) -> None:
    _, model, inputs = shared
    assert torch.equal(copy.deepcopy(model)(inputs), model(inputs))


def test_resnet_does_not_downsample_small_images_in_its_first_layers() -> None:
    sizes = {}
    for size in (64, 65, 224):
        model = build("resnet18", {"image_size": size}, 10, (3, size, size))
        first = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
        sizes[size] = first(torch.zeros(1, 3, size, size)).shape[-1]
    assert sizes == {64: 64, 65: 17, 224: 56}


def test_error_names_the_invalid_model_option() -> None:
    with pytest.raises(ConfigurationError, match="model_options of resnet18: image_size is 8"):
        build("resnet18", {"image_size": 8}, 10, (3, 8, 8))


def test_unsupported_input_shape_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"gpt takes inputs of shape \(256,\), not"):
        build("gpt", {}, 10, (512,))
