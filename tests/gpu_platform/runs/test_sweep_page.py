"""The HTML page of a sweep: complete, self-contained, and safe with untrusted text."""

import base64
import builtins
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)

from gitops.errors import GitopsError
from gpu_platform.runs import command
from gpu_platform.runs.cluster import Member
from gpu_platform.runs.sweep_page import page
from sweeps.controller import Controller
from tests.gpu_platform.runs.test_sweeps import summary
from tests.sweeps.test_controller import Stage

EVIL = '<script>alert("x")</script> $\\frac{$ & "\' ]]>'


def searched(choice: str = "adamw", trials: int = 8, **changes: Any) -> dict[str, Any]:
    space = {
        "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
        "batch_size": IntDistribution(16, 128),
        "optimizer": CategoricalDistribution((choice, "sgd")),
    }
    rows = [
        {
            "number": number,
            "run": f"digits-{number:08x}",
            "phase": "paused" if number % 3 else "succeeded",
            "trained": 1 if number % 3 else 9,
            "value": 1 / (1 + number % 5),
            "hyperparameters": {
                "learning_rate": 1e-4 * 2**number,
                "batch_size": 16 + number,
                "optimizer": choice if number % 2 else "sgd",
            },
        }
        for number in range(trials)
    ]
    described = {name: distribution_to_json(each) for name, each in space.items()}
    return summary(trials=rows, chosen=trials, space=described, **changes)


@pytest.fixture(scope="module")
def usual() -> str:
    """The page of a sweep with trials."""
    return page({"digits": searched()})


def images(text: str) -> list[str]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    return [base64.b64decode(each).decode() for each in found]


def test_ticks_of_a_logarithmic_axis_are_numbers(usual: str) -> None:
    plots = "".join(images(usual))
    assert "<!-- 0.001 -->" in plots
    assert "mathdefault" not in plots


def test_page_contains_three_plots_and_every_trial(usual: str) -> None:
    assert re.findall("<figcaption>(.*)</figcaption>", usual) == [
        "History",
        "Hyperparameters",
        "Importance",
    ]
    for image in images(usual):
        assert ElementTree.fromstring(image).tag.endswith("svg")  # noqa: S314
    assert usual.count("<tr>") == 1 + 8
    assert "<td>digits-00000003</td><td>succeeded</td><td>9/9</td>" in usual


def test_page_is_self_contained_and_reproducible(usual: str) -> None:
    assert usual == page({"digits": searched()})
    sources = re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^"\s)]{0,30})', usual)
    assert all(source.startswith("data:image/svg+xml") for source in sources)
    assert "default-src 'none'" in usual


def test_untrusted_text_is_rendered_as_neither_markup_nor_formulas() -> None:
    hostile = searched(choice=EVIL, problem=EVIL)
    hostile["trials"][0]["run"] = EVIL
    text = page({EVIL: hostile})
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 3
    assert len(images(text)) == 3
    assert not [image for image in images(text) if "<script" in image]


def test_a_sweep_without_comparable_trials_has_no_plots() -> None:
    one = page({"digits": searched(trials=1)})
    assert "Plots appear once two trials have reported held_out_loss" in one
    assert not images(one)
    equal = searched()
    for trial in equal["trials"]:
        trial["value"] = 0.5
    assert len(images(page({"digits": equal}))) == 2
    assert "No sweep has started" in page({"digits": {}})


def test_errors_name_the_missing_package_and_the_old_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        GitopsError, match="earlier version of the controller wrote the summary of sweep digits"
    ):
        page({"digits": summary()})
    found = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "matplotlib":
            raise ImportError(name=name)
        return found(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(GitopsError, match=r"requires the matplotlib package.*sweep-page\.txt"):
        page({"digits": searched()})


def test_command_writes_the_page_of_the_controllers_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claim, file = tmp_path / "claim", tmp_path / "sweeps.html"
    claim.mkdir()
    stage = Stage(claim)
    assert isinstance(stage.controller, Controller)
    stage.step()
    stage.api.set("Running")
    for number, run in enumerate(stage.api.jobs):
        stage.report_losses(run, 0.5 + number)
    stage.step(10)
    monkeypatch.setattr(Member, "sweeps", lambda _: {"digits": stage.api.summary})
    assert command.main(["sweeps", "--namespace", "ml", "--html", str(file)]) == 0
    text = file.read_text("utf-8")
    assert len(images(text)) == 3
    for run in stage.api.jobs:
        assert run in text
    missing = str(tmp_path / "missing" / "sweeps.html")
    assert command.main(["sweeps", "--namespace", "ml", "--html", missing]) == 1
    assert f"{missing} cannot be written" in capsys.readouterr().err
