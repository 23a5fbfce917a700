import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.training.export.conftest import Export, Trained
from training import evaluation
from training.config import TrainingConfig
from training.data import load
from training.export import (
    _sources_digest,
    code_version,
    write_export,
)
from training.export.artifacts import write_weights
from workload.export import fill, load_network, tensors_of
from workload.manifest import ExportError, read_manifest
from workload.models import build


def test_manifest_contains_what_serving_needs(export: Export) -> None:
    folder, manifest = export()
    document = json.loads((folder / "manifest.json").read_text())
    assert document["format"] == 1
    assert document["outputs"] == 10
    assert document["input_dtype"] == "float32"
    assert document["signature"] == {
        "name": "images",
        "datatype": "FP32",
        "shape": [-1, 1, 8, 8],
    }
    assert document["code_version"].startswith("sources-")
    assert document["run"] == "run-7"
    assert read_manifest(folder) == manifest


def test_manifest_of_a_token_model_has_outputs_instead_of_classes(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/one.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    options = {"context": 16, "layers": 1, "heads": 2, "width": 16}
    config = TrainingConfig.model_validate(
        {"model": "gpt", "model_options": options, "dataset": "text"}
        | {"export_formats": "pt2", "quantize": "dynamic"}
    )
    data = load("text", tmp_path, (16,), seed=0)
    model = build("gpt", dict(options), data.outputs, data.shape)
    inputs = torch.from_numpy(data.held_out.batch(torch.arange(4).numpy())[0])
    folder = tmp_path / "export"
    manifest = write_export(folder, model, config, data, {})
    assert (manifest.classes, manifest.outputs) == ((), data.outputs)
    assert manifest.options == options
    assert manifest.signature.model_dump() == {
        "name": "tokens",
        "datatype": "INT64",
        "shape": (-1, 16),
    }
    assert [artifact.kind for artifact in manifest.artifacts] == ["pt2", "int8"]
    assert torch.equal(load_network(folder, manifest)(inputs), model.eval()(inputs))


def test_artifacts_are_evaluated_on_held_out_samples(digits_net: Trained, tmp_path: Path) -> None:
    config = TrainingConfig(model="digits-net", prune=0.5)
    manifest = write_export(tmp_path, digits_net.model, config, digits_net.data, {})
    expected = digits_net.evaluate(digits_net.model)
    assert manifest.artifact("pruned").metrics_before == pytest.approx(expected, abs=1e-6)


def test_watchdog_is_notified_during_every_part_of_an_export(
    digits_net: Trained, tmp_path: Path
) -> None:
    beats: list[None] = []
    config = TrainingConfig(model="digits-net", prune=0.5)
    write_export(
        tmp_path,
        digits_net.model,
        config,
        digits_net.data,
        {},
        beat=lambda: beats.append(None),
    )
    assert len(beats) >= 5


def test_artifacts_of_token_models_are_evaluated_in_small_batches_with_watchdog_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/one.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    options = {"context": 16, "layers": 1, "heads": 2, "width": 16}
    config = TrainingConfig.model_validate(
        {"model": "gpt", "model_options": options, "dataset": "text", "prune": 0.5}
    )
    data = load("text", tmp_path, (16,), seed=0)
    model = build("gpt", dict(options), data.outputs, data.shape)
    monkeypatch.setattr(evaluation, "MAX_BATCH_TOKENS", 5 * 16)
    sizes: list[int] = []
    beats: list[None] = []
    forward = type(model).forward

    def record_batch_size(self: nn.Module, inputs: Tensor) -> Tensor:
        sizes.append(len(inputs))
        result: Tensor = forward(self, inputs)
        return result

    monkeypatch.setattr(type(model), "forward", record_batch_size)
    manifest = write_export(
        tmp_path / "export", model, config, data, {}, beat=lambda: beats.append(None)
    )
    assert manifest.artifact("pruned").batch == max(sizes) == 5
    assert len(beats) >= 2 * len(data.held_out) // 5


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.other = nn.Linear(3, 3, bias=False)
        self.other.weight = self.one.weight
        self.register_buffer("part", self.one.weight.detach()[0])

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.other(self.one(inputs)) + self.part
        return outputs


def test_shared_weights_are_written_once_and_shared_after_loading(tmp_path: Path) -> None:
    model = Tied()
    path = tmp_path / "model.safetensors"
    write_weights(path, model)
    assert set(tensors_of(model)) == {"one.weight", "part"}
    loaded = fill(Tied(), path)
    assert loaded.other.weight is loaded.one.weight
    inputs = torch.rand(2, 3)
    assert torch.equal(loaded(inputs), model(inputs))


def test_file_with_missing_tensors_is_not_loaded(tmp_path: Path) -> None:
    write_weights(tmp_path / "model.safetensors", nn.Linear(3, 3))
    with pytest.raises(
        ExportError, match=r"exactly the model's tensors: bias, one.weight, part, weight"
    ):
        fill(Tied(), tmp_path / "model.safetensors")


def test_the_code_version_is_configured_or_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE_VERSION", "3f2a")
    assert code_version() == "3f2a"
    monkeypatch.delenv("CODE_VERSION")
    assert code_version() == code_version()
    for package in ("training", "workload", "inference"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("1")
    (tmp_path / "training" / "b.txt").write_text("1")
    first = _sources_digest(tmp_path)
    (tmp_path / "training" / "b.txt").write_text("2")
    (tmp_path / "inference" / "a.py").write_text("2")
    assert _sources_digest(tmp_path) == first
    (tmp_path / "workload" / "a.py").write_text("2")
    assert _sources_digest(tmp_path) != first
