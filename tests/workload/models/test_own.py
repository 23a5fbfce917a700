import sys
from pathlib import Path

import pytest
import torch

from workload.catalog import Option
from workload.configuration import ConfigurationError
from workload.models import build

SOURCE = """
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, outputs, input_shape, width=4):
        super().__init__(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), width),
                         nn.ReLU(), nn.Linear(width, outputs))

def picky(outputs, input_shape, *, depth):
    raise RuntimeError(f"no depth of {depth}")

def words(outputs, input_shape):
    return "a network"

number = 3
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(SOURCE)
    (tmp_path / "own_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)


def test_a_factory_is_called_with_shape_and_outputs() -> None:
    model = build("own_models:Net", {"width": 6}, 3, (2, 5))
    assert model(torch.zeros(4, 2, 5)).shape == (4, 3)
    assert model[1].out_features == 6


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "own_nowhere:Net",
            {},
            "No module named 'own_nowhere'; the directory that contains this module must be on",
        ),
        ("own_broken:Net", {}, "own_broken cannot be imported: ZeroDivisionError"),
        ("own_models:Nut", {}, "own_models has no function or class named Nut"),
        ("own_models:number", {}, "no function or class named number"),
        ("own_models:Net", {"depth": 2}, "cannot be called with outputs, input_shape, depth: got"),
        ("own_models:picky", {}, "missing a required argument: 'depth'"),
        ("own_models:picky", {"depth": 2}, "failed with .*: RuntimeError: no depth of 2"),
        (
            "own_models:Net",
            {"outputs": 2},
            "must not contain outputs, which the data",
        ),
        ("own_models:words", {}, "returned str: it must return a torch.nn.Module"),
    ],
)
def test_problems_of_custom_models_are_one_sentence(
    name: str, options: dict[str, Option], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        build(name, options, 3, (2, 5))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
