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

def failing(outputs, input_shape, *, depth):
    raise RuntimeError(f"no depth of {depth}")

def not_a_model(outputs, input_shape):
    return "a network"

number = 3
"""


@pytest.fixture(autouse=True)
def custom_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "custom_models.py").write_text(SOURCE)
    (tmp_path / "custom_broken.py").write_text("1 / 0")
    (tmp_path / "custom_script.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "custom_models", raising=False)


def test_custom_model_is_called_with_input_shape_outputs_and_options() -> None:
    model = build("custom_models:Net", {"width": 6}, 3, (2, 5))
    assert model(torch.zeros(4, 2, 5)).shape == (4, 3)
    assert model[1].out_features == 6


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "custom_nowhere:Net",
            {},
            "No module named 'custom_nowhere'; the directory that contains this module must be on",
        ),
        ("custom_broken:Net", {}, "custom_broken cannot be imported: ZeroDivisionError"),
        ("custom_script:Net", {}, "custom_script cannot be imported: SystemExit: 0"),
        ("custom_models:Nut", {}, "custom_models has no function or class named Nut"),
        ("custom_models:number", {}, "no function or class named number"),
        (
            "custom_models:Net",
            {"depth": 2},
            "cannot be called with outputs, input_shape, depth: got",
        ),
        ("custom_models:failing", {}, "missing a required argument: 'depth'"),
        ("custom_models:failing", {"depth": 2}, "failed with .*: RuntimeError: no depth of 2"),
        (
            "custom_models:Net",
            {"outputs": 2},
            "must not contain outputs, which the data",
        ),
        ("custom_models:not_a_model", {}, "returned str: it must return a torch.nn.Module"),
    ],
)
def test_error_of_a_custom_model_is_one_line_that_names_the_model(
    name: str, options: dict[str, Option], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        build(name, options, 3, (2, 5))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
