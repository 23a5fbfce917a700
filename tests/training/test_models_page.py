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


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = block("python")
    assert source.startswith("# my_models.py\n")
    (tmp_path / "my_models.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))


def arguments() -> list[str]:
    words = shlex.split(block("console").replace("\\\n", " "))
    return words[words.index("training") + 1 :]


@pytest.mark.usefixtures("own")
def test_the_documented_custom_model_is_built() -> None:
    config = read_config(arguments(), {})
    data = load(config.dataset, Path("/nowhere"), None, seed=0)
    model = build(config.model, config.model_options, data.outputs, data.shape)
    assert model.last.in_features == 128  # type: ignore[union-attr]
    assert len(blocks(model)) == 2


@pytest.mark.usefixtures("own")
def test_the_documented_custom_model_is_trained_by_its_command(
    train: Callable[..., int], tmp_path: Path
) -> None:
    config = read_config(arguments(), {})
    wanted = {name: getattr(config, name) for name in ("model", "model_options", "dataset")}
    train(**wanted, epochs=3, learning_rate=0.01)
    manifest = read_manifest(tmp_path / "run/export")
    assert manifest.options == {"width": 128}
    assert manifest.metrics["accuracy"] > 0.8
