import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from training.command_line import read_config
from training.data import load
from workload.manifest import read_manifest
from workload.models import build
from workload.models.structure import blocks

DOCUMENT = (Path(__file__).parents[2] / "docs/models.md").read_text()


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.fixture
def documented_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in zip(
        ("my_models", "my_losses", "my_data"), blocks_of("python"), strict=True
    ):
        assert source.startswith(f"# {name}.py\n")
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))


def arguments(number: int = 0) -> list[str]:
    words = shlex.split(blocks_of("console")[number].replace("\\\n", " "))
    return words[words.index("training") + 1 :]


@pytest.mark.usefixtures("documented_modules")
def test_the_documented_custom_model_is_built() -> None:
    config = read_config(arguments(), {})
    data = load(config.dataset, Path("/nowhere"), None, seed=0)
    model = build(config.model, config.model_options, data.outputs, data.shape)
    assert model.last.in_features == 128
    assert len(blocks(model)) == 2


@pytest.mark.usefixtures("documented_modules")
def test_the_documented_custom_model_is_trained_by_its_command(
    train: Callable[..., int], tmp_path: Path
) -> None:
    config = read_config(arguments(), {})
    settings = {name: getattr(config, name) for name in ("model", "model_options", "dataset")}
    train(**settings, epochs=3, learning_rate=0.01)
    manifest = read_manifest(tmp_path / "run/export")
    assert manifest.options == {"width": 128}
    assert manifest.metrics["accuracy"] > 0.8


@pytest.mark.usefixtures("documented_modules")
def test_the_documented_loss_and_metric_are_used_by_their_command(
    train: Callable[..., int], tmp_path: Path
) -> None:
    config = read_config(arguments(1), {})
    settings = {name: getattr(config, name) for name in ("model", "loss", "metrics", "dataset")}
    train(**settings, epochs=3, learning_rate=0.01)
    metrics = read_manifest(tmp_path / "run/export").metrics
    assert metrics["top3"] >= metrics["accuracy"] > 0.8


@pytest.mark.usefixtures("documented_modules")
def test_the_documented_data_set_is_learned_by_its_command(
    train: Callable[..., int], tmp_path: Path
) -> None:
    config = read_config(arguments(2), {})
    train(dataset=config.dataset, model=config.model, epochs=config.epochs)
    manifest = read_manifest(tmp_path / "run/export")
    assert manifest.classes == ("left", "right")
    assert manifest.metrics["accuracy"] > 0.9
