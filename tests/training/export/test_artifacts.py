import copy
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.training.export.conftest import Export, Trained
from training.export import artifacts, finished_export
from training.export.artifacts import ARTIFACT_FILES
from training.export.compression import check_quantization, pruned, share_of_zeros
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.export import load_artifact
from workload.files import sha256_of
from workload.manifest import ExportError, Manifest, read_manifest

Complete = tuple[Path, Manifest]


def warnings_in(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    return [line["message"] for line in lines if line["event"] == "warning"]


def test_all_requested_artifacts_are_written_and_listed(complete: Complete) -> None:
    folder, manifest = complete
    assert {artifact.kind for artifact in manifest.artifacts} == set(ARTIFACT_FILES)
    assert read_manifest(folder) == manifest
    assert finished_export(folder) == manifest
    files = {"model.safetensors", "manifest.json", *ARTIFACT_FILES.values()}
    assert {path.name for path in folder.iterdir()} == files
    for artifact in manifest.artifacts:
        path = folder / artifact.file
        assert (artifact.size, artifact.sha256) == (path.stat().st_size, sha256_of(path))
        assert artifact.relative_size == artifact.size / manifest.weights.size
        assert artifact.batch == 32
        assert artifact.metrics_before == manifest.metrics


@pytest.mark.parametrize("kind", ARTIFACT_FILES)
def test_artifact_has_the_metrics_stated_in_the_manifest(
    kind: str, complete: Complete, digits_net: Trained
) -> None:
    folder, manifest = complete
    model = load_artifact(folder, manifest, kind)
    assert digits_net.evaluate(model) == pytest.approx(manifest.artifact(kind).metrics, abs=1e-6)


def test_exported_program_accepts_any_number_of_samples(
    complete: Complete, digits_net: Trained
) -> None:
    model = load_artifact(*complete, "pt2")
    with torch.no_grad():
        for count in (1, 2, 3, 40, 300):
            inputs = digits_net.inputs[:count]
            assert torch.allclose(model(inputs), digits_net.model(inputs), atol=1e-5)


def test_int8_models_are_smaller_and_nearly_as_accurate(complete: Complete) -> None:
    _, manifest = complete
    artifact = manifest.artifact("int8")
    assert artifact.method == "static"
    assert artifact.metrics["accuracy"] > manifest.metrics["accuracy"] - 0.02
    assert artifact.relative_size < 0.8
    assert artifact.largest_difference is not None
    assert artifact.largest_difference > 0


def test_int8_models_use_int8_kernels(complete: Complete) -> None:
    model = load_artifact(*complete, "int8")
    graph = model._program[0].graph
    called = {str(node.target) for node in graph.nodes}
    assert "onednn.qconv_pointwise.default" in called
    assert "aten.convolution.default" not in called


@pytest.mark.parametrize("method", ["dynamic", "weight-only"])
def test_linear_layers_are_quantized(method: str, export: Export, digits_net: Trained) -> None:
    folder, manifest = export(quantize=method)
    artifact = manifest.artifact("int8")
    assert (artifact.method, artifact.file) == (method, "model-int8.pt2")
    assert artifact.metrics["accuracy"] > manifest.metrics["accuracy"] - 0.02
    assert artifact.relative_size < 1
    model = load_artifact(folder, manifest, "int8")
    assert digits_net.evaluate(model) == pytest.approx(artifact.metrics, abs=1e-6)


@pytest.mark.parametrize("kind", ARTIFACT_FILES)
def test_artifact_with_an_unexpected_digest_is_refused(
    kind: str, complete: Complete, tmp_path: Path
) -> None:
    folder = shutil.copytree(complete[0], tmp_path / "export")
    path = folder / ARTIFACT_FILES[kind]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ExportError, match="not those that were exported"):
        load_artifact(folder, complete[1], kind)
    assert finished_export(folder) is None


def test_error_names_the_missing_artifact(export: Export) -> None:
    folder, manifest = export()
    with pytest.raises(ExportError, match="no artifact 'int8'; its artifacts: none"):
        load_artifact(folder, manifest, "int8")
    folder, manifest = export(prune=0.5)
    with pytest.raises(ExportError, match="no artifact 'int8'; its artifacts: pruned"):
        load_artifact(folder, manifest, "int8")
    (folder / ARTIFACT_FILES["pruned"]).unlink()
    with pytest.raises(ExportError, match="cannot be read: No such file"):
        load_artifact(folder, manifest, "pruned")


class RandomOutputs(nn.Module):
    """A model with different outputs in each call."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.rand_like(inputs.flatten(1)[:, :10])


def test_artifact_whose_outputs_differ_from_the_model_is_not_listed(
    export: Export, digits_net: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trained(RandomOutputs(), digits_net.data, digits_net.inputs, digits_net.targets)
    folder, manifest = export(trained, export_formats="pt2")
    assert manifest.artifacts == ()
    [message] = warnings_in(capsys)
    assert message.startswith(
        "export_formats pt2: model.pt2 could not be exported: its outputs differ by"
    )
    assert not (folder / "model.pt2").exists()
    assert finished_export(folder) == manifest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantize": "static"}, "quantize static is for models with convolutions"),
        (
            {"quantize": "dynamic"},
            "quantize dynamic changes linear layers, but this model has",
        ),
        ({"prune": 0.5}, "prune 0.5: .* has neither linear layers nor convolutions"),
    ],
)
def test_failed_artifact_is_reported_and_others_are_kept(
    settings: dict[str, object],
    message: str,
    export: Export,
    digits_net: Trained,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Bias(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(10))

        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.mean((1, 2, 3))[:, None] + self.bias

    trained = Trained(Bias(), digits_net.data, digits_net.inputs, digits_net.targets)
    folder, manifest = export(trained, export_formats="pt2", **settings)
    [warning] = warnings_in(capsys)
    assert re.search(message, warning)
    assert [artifact.kind for artifact in manifest.artifacts] == ["pt2"]
    assert (folder / "model.safetensors").exists()


def test_a_missing_torchao_is_reported_before_the_run(
    export: Export, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchao", None)
    check_quantization("none")
    with pytest.raises(ConfigurationError, match="quantize static needs the torchao package"):
        check_quantization("static")
    _, manifest = export(quantize="static")
    assert manifest.artifacts == ()
    assert "install it in the image, or set quantize to none" in warnings_in(capsys)[0]


def test_export_does_not_modify_the_model(export: Export, digits_net: Trained) -> None:
    model = copy.deepcopy(digits_net.model).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained = Trained(model, digits_net.data, digits_net.inputs, digits_net.targets)
    export(trained, export_formats="pt2", prune=0.5, quantize="weight-only")
    model.train()
    assert all(weight.requires_grad for weight in model.parameters())
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 10))


@settings(max_examples=25)
@given(share=st.floats(0.01, 0.99))
def test_the_smallest_weights_of_the_whole_model_become_zero(share: float) -> None:
    model = network()
    smaller = pruned(model, share)
    weights = torch.cat([model[index].weight.detach().flatten() for index in (0, 3)])
    kept = torch.cat([smaller[index].weight.detach().flatten() for index in (0, 3)])
    assert share_of_zeros(smaller) == pytest.approx(share, abs=1 / len(weights))
    assert torch.equal(kept[kept != 0], weights[kept != 0])
    if (kept != 0).any():
        assert weights[kept == 0].abs().max() <= weights[kept != 0].abs().min()


def test_biases_and_norms_and_the_original_model_are_not_pruned() -> None:
    model = network()
    smaller = pruned(model, 0.5)
    assert smaller.state_dict().keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        unchanged = name not in ("0.weight", "3.weight")
        assert torch.equal(smaller.state_dict()[name], tensor) == unchanged
    assert not share_of_zeros(model)


def test_pruned_layers_still_share_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    smaller = pruned(model, 0.5)
    assert int((smaller[0].weight == 0).sum()) == 8
    assert smaller[0].weight is smaller[1].weight


def test_manifest_states_sparsity_and_compressed_size(export: Export) -> None:
    _, manifest = export(prune=0.75)
    artifact = manifest.artifact("pruned")
    assert artifact.zeros == pytest.approx(0.75, abs=1e-3)
    assert artifact.relative_size == pytest.approx(1)
    assert artifact.compressed_size is not None
    assert artifact.compressed_size < 0.5
    assert artifact.metrics["accuracy"] > 0.85


def test_existing_export_remains_until_its_replacement_is_complete(
    train: Callable[..., int], tmp_path: Path
) -> None:
    train(prune=0.5)
    before = read_manifest(tmp_path / "run/export")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(artifacts, "write_program", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(epochs=3, export_formats=["pt2"])
    assert finished_export(tmp_path / "run/export") == before
    assert train(epochs=3, export_formats=["pt2"]) == exit_codes.DONE
    assert [path.name for path in sorted((tmp_path / "run/export").iterdir())] == [
        "manifest.json", "model.pt2", "model.safetensors"
    ]  # fmt: skip
    assert not (tmp_path / "run/.export.tmp").exists()
