import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.training.programs import start_gang
from training.config import TrainingConfig
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.manifest import read_manifest

Train = Callable[..., int]
STILL = {"optimizer": "sgd", "learning_rate": 1e-12, "weight_decay": 0, "schedule": "constant"}
"""Steps that change no weight by more than the rounding of fp32."""
GPT = {"model": "gpt", "dataset": "text", "batch_size": 8, "epochs": 1}
SMALL = {"context": 16, "layers": 1, "heads": 2, "width": 16}


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export/model.safetensors")


def start_event(output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(output.splitlines()[0])
    return found


@pytest.fixture
def texts(tmp_path: Path) -> str:
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.txt").write_text("one two three four five six seven " * 40)
    return str(tmp_path)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("source", ["first", "first/export"])
def test_every_process_starts_with_the_weights_of_the_export(
    parallel: str, source: str, train: Train, tmp_path: Path
) -> None:
    train("first", epochs=1)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in STILL.items()]
    flags += ["--model=digits-net", "--dataset=digits", "--epochs=1", f"--parallel={parallel}"]
    flags += [f"--init-from={tmp_path / source}", f"--run-dir={tmp_path / 'second'}", "--seed=1"]
    gang = start_gang(flags, 2, tmp_path / "gang")
    assert [program.exit_code() for program in gang] == [exit_codes.DONE] * 2, gang[0].text
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)
    report = start_event(gang[0].text)["initial_weights"]
    assert (report["loaded"], report["missing"], report["ignored"]) == (len(before), [], [])
    assert report["sha256"] == read_manifest(tmp_path / "first/export").weights.sha256


def test_a_run_that_resumes_does_not_need_the_export(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("first", epochs=1)
    warm = {"init_from": str(tmp_path / "first")}
    train("second", epochs=1, **warm)
    train("third", epochs=1, **warm)
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "third/export")
    capsys.readouterr()
    assert train("third", epochs=1, **warm) == exit_codes.DONE
    resumed = start_event(capsys.readouterr().out)
    assert (resumed["event"], "initial_weights" in resumed) == ("resume", False)
    digests = [
        read_manifest(tmp_path / f"{run}/export").weights.sha256 for run in ("second", "third")
    ]
    assert digests[0] == digests[1]


def test_tensors_that_fit_are_loaded_and_the_others_reported(
    train: Train, tmp_path: Path, texts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt = GPT | {"data_dir": texts}
    train("first", **gpt, model_options=SMALL)
    other = gpt | {"model_options": SMALL | {"layers": 2}, "init_from": str(tmp_path / "first")}
    with pytest.raises(ConfigurationError, match="with init_partial true") as failure:
        train("second", **other)
    assert "model_options" in str(failure.value)
    assert "that it lacks or has in another shape: blocks.1." in str(failure.value)
    capsys.readouterr()
    train("second", **other, **STILL, init_partial=True)
    report = start_event(capsys.readouterr().out)["initial_weights"]
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert report["loaded"] == len(before)
    assert report["missing"] == sorted(after.keys() - before.keys())
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)


def test_a_model_without_any_fitting_tensor_is_refused(
    train: Train, tmp_path: Path, texts: str
) -> None:
    train("first", epochs=1)
    with pytest.raises(ConfigurationError, match="correct init_from"):
        train(
            "second",
            **GPT,
            data_dir=texts,
            model_options=SMALL,
            init_from=str(tmp_path / "first"),
            init_partial=True,
        )


def test_other_weights_than_expected_are_refused(train: Train, tmp_path: Path) -> None:
    train("first", epochs=1)
    digest = read_manifest(tmp_path / "first/export").weights.sha256
    warm = {"init_from": str(tmp_path / "first"), "epochs": 1}
    with pytest.raises(ConfigurationError, match=f"have sha256 {digest}, not init_sha256 aaaa"):
        train("second", **warm, init_sha256="a" * 64)
    assert train("second", **warm, init_sha256=digest) == exit_codes.DONE


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda export: shutil.rmtree(export), "does not exist yet; write the directory"),
        (lambda export: (export / "model.safetensors").write_bytes(b"x"), "has 1 bytes, the mani"),
    ],
)
def test_a_missing_or_damaged_export_is_refused(
    damage: Callable[[Path], object], problem: str, train: Train, tmp_path: Path
) -> None:
    train("first", epochs=1)
    damage(tmp_path / "first/export")
    with pytest.raises(ConfigurationError, match=problem):
        train("second", init_from=str(tmp_path / "first"))


@pytest.mark.parametrize("alone", [{"init_partial": True}, {"init_sha256": "0" * 64}])
def test_settings_of_a_warm_start_need_its_directory(alone: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is set without init_from"):
        TrainingConfig.model_validate(alone)


def test_a_warm_start_belongs_to_the_settings_that_determine_the_result() -> None:
    warm = TrainingConfig.model_validate({"init_from": "/checkpoints/first"})
    assert warm.decisive()["init_from"] == "/checkpoints/first"
    assert warm.to_args() == ["--init-from=/checkpoints/first"]
    assert "init_from" not in TrainingConfig().decisive()
