import pytest
import torch
from torch import nn

from workload.models import build
from workload.models.structure import blocks, flops_per_sample


def test_the_blocks_of_a_gpt_are_its_layers() -> None:
    model = build("gpt", {"layers": 3}, 256, (256,))
    assert [type(block).__name__ for block in blocks(model)] == ["Block"] * 3


@pytest.mark.parametrize(("name", "count"), [("resnet18", 8), ("resnet50", 16)])
def test_the_blocks_of_a_resnet_are_its_residual_ones(name: str, count: int) -> None:
    found = blocks(build(name, {"image_size": 32}, 10, (3, 32, 32)))
    assert len({id(block) for block in found}) == len(found) == count


def test_a_model_without_repeated_layers_has_no_blocks() -> None:
    assert blocks(build("simple-cnn", {}, 10, (3, 32, 32))) == []


def test_lists_of_lists_give_the_outermost_modules_that_can_be_called() -> None:
    layers = [nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])) for _ in range(2)]
    model = nn.ModuleDict({"a": nn.ModuleList([nn.ModuleList(layers)]), "b": nn.Linear(2, 2)})
    assert blocks(model) == layers
    assert blocks(nn.Sequential(nn.ModuleList([nn.ReLU()]))) == []


def test_the_operations_of_a_linear_layer_are_counted() -> None:
    # A product and a sum per weight: forward, and for the gradients of weights and of inputs.
    assert flops_per_sample(nn.Linear(30, 50), (30,)) == 3 * 2 * 30 * 50


def test_the_operations_of_resnet50_are_those_of_the_literature() -> None:
    # 4.09 G multiplications with additions for a forward pass of 224x224.
    model = build("resnet50", {}, 1000, (3, 224, 224))
    assert flops_per_sample(model, (3, 224, 224)) == pytest.approx(3 * 2 * 4.09e9, rel=0.01)


def test_the_operations_of_a_gpt_are_six_for_each_weight_and_token_and_attention() -> None:
    layers, width, context = 2, 64, 128
    options = {"layers": layers, "heads": 2, "width": width, "context": context}
    model = build("gpt", options, 100, (context,))
    weights = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    attention = 12 * layers * width * context * context
    expected = 6 * weights * context + attention
    assert flops_per_sample(model, (context,), torch.int64) == pytest.approx(expected, rel=0.001)


def test_counting_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert flops_per_sample(model, (3, 8, 8)) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
