import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from tests.training.conftest import make_unavailable, train_in
from tests.training.programs import start_gang
from training.config import TrainingConfig
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.manifest import UnavailableExportError, read_manifest

Train = Callable[..., int]
STILL = {"optimizer": "sgd", "learning_rate": 1e-12, "weight_decay": 0, "schedule": "constant"}
"""Settings with which no step changes a weight by more than a rounding error in fp32."""
GPT = {"model": "gpt", "dataset": "text", "batch_size": 8, "epochs": 1}
SMALL = {"context": 16, "layers": 1, "heads": 2, "width": 16}


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_file(run_dir / "export/model.safetensors")


def start_event(output: str) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(output.splitlines()[0])
    return event


def write_texts(folder: Path) -> str:
    (folder / "text").mkdir()
    (folder / "text/a.txt").write_text("one two three four five six seven " * 40)
    return str(folder)


@pytest.fixture
def texts(tmp_path: Path) -> str:
    return write_texts(tmp_path)


@pytest.fixture(scope="module")
def trained_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small trained classifier. Read-only: tests change a copy."""
    folder = tmp_path_factory.mktemp("net")
    train_in(folder, "first", epochs=1)
    return folder / "first"


@pytest.fixture
def first_run(trained_net: Path, tmp_path: Path) -> Path:
    """A copy of the run directory of the small trained classifier."""
    return shutil.copytree(trained_net, tmp_path / "first")


@pytest.mark.parametrize(("parallel", "source"), [("ddp", "first"), ("fsdp", "first/export")])
@pytest.mark.usefixtures("first_run")
def test_every_process_starts_with_the_weights_of_the_export(
    parallel: str, source: str, tmp_path: Path
) -> None:
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


def test_export_that_cannot_be_inspected_is_not_missing(
    first_run: Path, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unavailable(first_run / "export" / "manifest.json", monkeypatch)
    with pytest.raises(UnavailableExportError, match="it cannot be read: Stale file handle"):
        train("second", init_from=str(first_run / "export"))


def make_unreadable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to open the file fail, as if its NFS server did not answer."""
    open_file = Path.open

    def fail(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return open_file(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("manifest.json", "init_from"),
        ("model.safetensors", "init_from"),
        ("huggingface/config.json", "init_from"),
        ("huggingface/model.safetensors", "init_from"),
        ("adapter/adapter_config.json", "init_adapter"),
        ("adapter/adapter_model.safetensors", "init_adapter"),
    ],
)
def test_unavailable_weights_are_not_invalid(
    name: str,
    setting: str,
    texts: str,
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {**GPT, "model_options": SMALL, "data_dir": texts}
    lora = {"lora_rank": 2, "init_from": str(tmp_path / "first")}
    assert train("first", **settings) == exit_codes.DONE
    assert train("tuned", **settings, **lora) == exit_codes.DONE
    path = tmp_path / ("tuned" if setting == "init_adapter" else "first") / "export" / name
    settings |= {"init_from": str(tmp_path / "first"), setting: str(path.parent)}
    make_unreadable(path, monkeypatch)
    with pytest.raises(UnavailableExportError, match="Stale file handle"):
        train("second", **settings)


def test_resumed_run_does_not_need_the_initial_export(
    first_run: Path, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = {"init_from": str(first_run)}
    train("second", epochs=1, **warm)
    train("third", epochs=1, **warm)
    shutil.rmtree(first_run)
    shutil.rmtree(tmp_path / "third/export")
    capsys.readouterr()
    assert train("third", epochs=1, **warm) == exit_codes.DONE
    resumed = start_event(capsys.readouterr().out)
    assert (resumed["event"], "initial_weights" in resumed) == ("resume", False)
    digests = [
        read_manifest(tmp_path / f"{run}/export").weights.sha256 for run in ("second", "third")
    ]
    assert digests[0] == digests[1]


@pytest.mark.usefixtures("llama")
def test_fitting_tensors_are_loaded_and_others_are_reported(
    train: Train, tmp_path: Path, texts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt = GPT | {"data_dir": texts}
    larger = gpt | {"model_options": SMALL | {"layers": 2}, "init_from": str(tmp_path / "first")}
    with pytest.raises(ConfigurationError, match="set init_partial to load only the") as failure:
        train("second", **larger)
    assert "model_options" in str(failure.value)
    assert "that are missing or have a different shape: blocks.1." in str(failure.value)
    capsys.readouterr()
    train("second", **larger, **STILL, init_partial=True)
    report = start_event(capsys.readouterr().out)["initial_weights"]
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert report["loaded"] == len(before)
    assert report["missing"] == sorted(after.keys() - before.keys())
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)


def test_a_model_without_any_fitting_tensor_is_refused(
    first_run: Path, train: Train, texts: str
) -> None:
    with pytest.raises(ConfigurationError, match="correct init_from"):
        train(
            "second",
            **GPT,
            data_dir=texts,
            model_options=SMALL,
            init_from=str(first_run),
            init_partial=True,
        )


def test_weights_that_do_not_match_init_sha256_are_refused(first_run: Path, train: Train) -> None:
    digest = read_manifest(first_run / "export").weights.sha256
    warm = {"init_from": str(first_run), "epochs": 1}
    with pytest.raises(ConfigurationError, match=f"have sha256 {digest}, not init_sha256 aaaa"):
        train("second", **warm, init_sha256="a" * 64)
    assert train("second", **warm, init_sha256=digest) == exit_codes.DONE


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda export: shutil.rmtree(export), "does not exist yet; set it to the directory"),
        (lambda export: (export / "model.safetensors").write_bytes(b"x"), "1 bytes, but the mani"),
    ],
)
def test_a_missing_or_damaged_export_is_refused(
    damage: Callable[[Path], object], problem: str, first_run: Path, train: Train
) -> None:
    damage(first_run / "export")
    with pytest.raises(ConfigurationError, match=problem):
        train("second", init_from=str(first_run))


@pytest.mark.parametrize("settings", [{"init_partial": True}, {"init_sha256": "0" * 64}])
def test_warm_start_settings_require_init_from(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="requires init_from"):
        TrainingConfig.model_validate(settings)


def test_result_settings_include_init_from() -> None:
    warm = TrainingConfig.model_validate({"init_from": "/checkpoints/first"})
    assert warm.result_settings()["init_from"] == "/checkpoints/first"
    assert warm.to_args() == ["--init-from=/checkpoints/first"]
    assert "init_from" not in TrainingConfig().result_settings()


@pytest.fixture(scope="module")
def trained_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small trained language model. Read-only: tests change a copy."""
    folder = tmp_path_factory.mktemp("gpt")
    train_in(folder, "first", **GPT, data_dir=write_texts(folder), model_options=SMALL)
    return folder / "first"


@pytest.fixture
def llama(trained_gpt: Path, tmp_path: Path) -> Path:
    """The Hugging Face directory in a copy of the small trained language model."""
    shutil.copytree(trained_gpt, tmp_path / "first")
    return tmp_path / "first/export/huggingface"


def change(path: Path, **settings: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def split_weights(llama: Path) -> None:
    """Split the weights into two files with an index, as transformers does for large models."""
    tensors = load_file(llama / "model.safetensors")
    (llama / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002": names[:3], "model-00002-of-00002": names[3:]}
    for part, tensor_names in parts.items():
        save_file({name: tensors[name] for name in tensor_names}, llama / f"{part}.safetensors")
    files = {
        name: f"{part}.safetensors" for part, tensor_names in parts.items() for name in tensor_names
    }
    index = {"metadata": {}, "weight_map": files}
    (llama / "model.safetensors.index.json").write_text(json.dumps(index))


def with_redundant_tensors(llama: Path) -> None:
    """Add rotary frequencies and tied output weights, which older files contain."""
    tensors = load_file(llama / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, llama / "model.safetensors")


def with_old_settings(llama: Path) -> None:
    """Write the settings of the rotary embedding as transformers did before version 5."""
    settings = json.loads((llama / "config.json").read_text())
    del settings["rope_parameters"], settings["head_dim"], settings["num_key_value_heads"]
    (llama / "config.json").write_text(json.dumps(settings | {"rope_scaling": None}))


@pytest.mark.parametrize(
    "form", [lambda _: None, split_weights, with_redundant_tensors, with_old_settings]
)
def test_a_run_starts_with_the_weights_of_a_hugging_face_directory(
    form: Callable[[Path], None],
    llama: Path,
    train: Train,
    tmp_path: Path,
    texts: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    form(llama)
    capsys.readouterr()
    settings = GPT | STILL | {"data_dir": texts, "model_options": SMALL}
    files = b"".join(path.read_bytes() for path in sorted(llama.glob("*.safetensors")))
    digest = hashlib.sha256(files).hexdigest()
    train("second", **settings, init_from=str(llama), init_sha256=digest)
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)
    report = start_event(capsys.readouterr().out)["initial_weights"]
    loaded = {"sha256": digest, "loaded": len(before), "missing": [], "ignored": []}
    assert report == loaded


def test_half_precision_weights_are_converted(
    llama: Path, train: Train, tmp_path: Path, texts: str
) -> None:
    tensors = load_file(llama / "model.safetensors")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(half, llama / "model.safetensors")
    train("second", **GPT, **STILL, data_dir=texts, model_options=SMALL, init_from=str(llama))
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor.bfloat16().float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-05, expected 1.1920928955078125e-07"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, "'rope_theta': 500000"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1, expected 2"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, expected True"),
        ({"model_type": "qwen2"}, "model_type is qwen2, expected llama"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads is 0, expected 2"),
    ],
)
def test_llama_that_differs_from_gpt_is_refused(
    settings: dict[str, object],
    difference: str,
    llama: Path,
    train: Train,
    texts: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(llama / "config.json", **settings)
    second = GPT | {"data_dir": texts, "model_options": SMALL, "init_from": str(llama)}
    with pytest.raises(ConfigurationError, match="set init_partial to load only the") as failure:
        train("second", **second)
    assert difference in str(failure.value)
    capsys.readouterr()
    train("second", **second, init_partial=True)
    report = start_event(capsys.readouterr().out)["initial_weights"]
    assert difference in "; ".join(report["differences"])


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("config.json", "{", "config.json is not readable JSON"),
        pytest.param("config.json", "[" * 10**5, "config.json is not readable JSON", id="brackets"),
        ("config.json", "[]", "config.json is not a JSON object"),
        ("model.safetensors", "x", "model.safetensors is not a readable safetensors file"),
        ("model.safetensors.index.json", "{}", "has no valid weight_map, or lists a file outside"),
        (
            "model.safetensors.index.json",
            '{"weight_map": {"a": "../a.safetensors"}}',
            "has no valid weight_map, or lists a file outside",
        ),
    ],
)
def test_a_damaged_hugging_face_directory_is_refused(
    file: str, content: str, problem: str, llama: Path, train: Train, texts: str
) -> None:
    (llama / file).write_text(content)
    with pytest.raises(ConfigurationError, match=problem):
        train("second", **GPT, data_dir=texts, model_options=SMALL, init_from=str(llama))


def test_image_model_cannot_start_with_llama_weights(llama: Path, train: Train) -> None:
    with pytest.raises(ConfigurationError, match="but only gpt can load Llama weights"):
        train("second", init_from=str(llama))
