import pytest
import torch
from torch import nn

from workload.models import build
from workload.models.structure import blocks, flops_per_sample


def test_blocks_of_a_gpt_are_its_layers() -> None:
    model = build("gpt", {"layers": 3}, 256, (256,))
    assert [type(block).__name__ for block in blocks(model)] == ["Block"] * 3


@pytest.mark.parametrize(("name", "count"), [("resnet18", 8), ("resnet50", 16)])
def test_blocks_of_a_resnet_are_its_residual_blocks(name: str, count: int) -> None:
    residual_blocks = blocks(build(name, {"image_size": 32}, 10, (3, 32, 32)))
    assert len({id(block) for block in residual_blocks}) == len(residual_blocks) == count


def test_a_model_without_repeated_layers_has_no_blocks() -> None:
    assert blocks(build("simple-cnn", {}, 10, (3, 32, 32))) == []


def test_blocks_in_nested_module_lists_are_the_outermost_callable_modules() -> None:
    layers = [nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.Linear(2, 2)])) for _ in range(2)]
    model = nn.ModuleDict({"a": nn.ModuleList([nn.ModuleList(layers)]), "b": nn.Linear(2, 2)})
    assert blocks(model) == layers
    assert blocks(nn.Sequential(nn.ModuleList([nn.ReLU()]))) == []


def test_flops_of_a_linear_layer_include_the_backward_pass() -> None:
    # One multiply-add per weight: for the output, the weight gradient and the input gradient.
    assert flops_per_sample(nn.Linear(30, 50), (30,)) == 3 * 2 * 30 * 50


def test_flops_of_resnet50_match_the_literature() -> None:
    # 4.09 billion multiply-adds for the forward pass of a 224x224 image.
    model = build("resnet50", {}, 1000, (3, 224, 224))
    assert flops_per_sample(model, (3, 224, 224)) == pytest.approx(3 * 2 * 4.09e9, rel=0.01)


def test_flops_of_a_gpt_are_six_per_weight_and_token_plus_attention() -> None:
    layers, width, context = 2, 64, 128
    options = {"layers": layers, "heads": 2, "width": width, "context": context}
    model = build("gpt", options, 100, (context,))
    weights = sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    attention = 12 * layers * width * context * context
    expected = 6 * weights * context + attention
    assert flops_per_sample(model, (context,), torch.int64) == pytest.approx(expected, rel=0.001)


def test_counting_flops_does_not_change_the_model_or_the_random_state() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert flops_per_sample(model, (3, 8, 8)) > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
