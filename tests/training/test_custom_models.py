"""Custom models: supported features, and mistakes that a restart would not fix."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.programs import start_gang
from workload import exit_codes
from workload.configuration import ConfigurationError
from workload.export import load_network
from workload.manifest import read_manifest

Train = Callable[..., int]
MODELS = "tests.training.custom_models"


def restart_without_export(run_dir: Path) -> dict[str, torch.Tensor]:
    """Delete the manifest, so that the next run resumes, and return the exported weights."""
    (run_dir / "export/manifest.json").unlink()
    return load_file(run_dir / "export/model.safetensors")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_frozen_layer_keeps_its_weights_and_the_run_resumes(
    optimizer: str, train: Train, tmp_path: Path
) -> None:
    settings = {"model": f"{MODELS}:Frozen", "optimizer": optimizer, "weight_decay": 0.5}
    train(epochs=1, **settings)
    before = restart_without_export(tmp_path / "run")
    assert train(epochs=2, **settings) == exit_codes.DONE
    after = load_file(tmp_path / "run/export/model.safetensors")
    assert torch.equal(before["backbone.weight"], after["backbone.weight"])
    assert not torch.equal(before["head.weight"], after["head.weight"])


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("ChannelsLast", id="channels-last memory format"),
        pytest.param("Normalized", id="batch norm statistics"),
    ],
)
def test_resumed_run_exports_the_same_weights_and_buffers_as_an_uninterrupted_one(
    model: str, train: Train, tmp_path: Path
) -> None:
    settings = {"model": f"{MODELS}:{model}", "schedule": "constant", "warm_up": 0}
    train(epochs=2, run_dir=tmp_path / "whole", **settings)
    train(epochs=1, **settings)
    restart_without_export(tmp_path / "run")
    assert train(epochs=2, **settings) == exit_codes.DONE
    uninterrupted, resumed = (
        load_file(tmp_path / name / "export/model.safetensors") for name in ("whole", "run")
    )
    assert uninterrupted.keys() == resumed.keys()
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in uninterrupted)


def test_frozen_integer_weights_are_saved_and_the_run_resumes(train: Train, tmp_path: Path) -> None:
    settings = {"model": f"{MODELS}:Quantized"}
    train(epochs=1, **settings)
    before = restart_without_export(tmp_path / "run")
    assert train(epochs=2, **settings) == exit_codes.DONE
    after = load_file(tmp_path / "run/export/model.safetensors")
    assert torch.equal(before["weight"], after["weight"])


def test_an_unused_parameter_is_kept_by_fsdp_and_the_run_resumes(
    train: Train, tmp_path: Path
) -> None:
    settings = {"model": f"{MODELS}:Unused", "parallel": "fsdp"}
    train(epochs=1, **settings)
    before = restart_without_export(tmp_path / "run")
    assert train(epochs=2, **settings) == exit_codes.DONE
    after = load_file(tmp_path / "run/export/model.safetensors")
    assert torch.equal(before["spare.weight"], after["spare.weight"])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Unused", "does not use spare.weight, spare.bias, which ddp would wait for: freeze"),
        ("Wrapped", "model .*:Wrapped returned dict for 2 samples: it must return logits of"),
        (
            "TooFew",
            r"model .*:TooFew returned \[2, 9\] for 2 samples: "
            r"it must return logits of shape \[2, 10\]",
        ),
    ],
)
def test_errors_in_a_custom_model_are_reported_before_the_first_step(
    model: str, message: str, train: Train
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(model=f"{MODELS}:{model}")


@pytest.mark.parametrize("options", [{"elements": 1}, {}])
def test_state_that_checkpoints_do_not_contain_is_refused(
    options: dict[str, int], train: Train
) -> None:
    with pytest.raises(ConfigurationError, match=r"has the state _extra_state \(get_extra_state\)"):
        train(model=f"{MODELS}:WithExtraState", model_options=options)


def test_empty_extra_state_is_accepted(train: Train) -> None:
    """Modules of Transformer Engine have such a state unless they use FP8."""
    train(model=f"{MODELS}:WithExtraState", model_options={"elements": 0})


@pytest.mark.parametrize(
    ("dtype", "share", "message"),
    [
        ("float32", True, "has the expanded tensor mask, whose elements share memory"),
        ("int16", False, "has the tensor mask of type torch.int16, which processes cannot"),
        ("float8_e4m3fn", False, "has the tensor mask of type torch.float8_e4m3fn, which"),
    ],
)
def test_unsupported_tensor_is_named(dtype: str, share: bool, message: str, train: Train) -> None:
    with pytest.raises(ConfigurationError, match=message):
        train(model=f"{MODELS}:WithMask", model_options={"dtype": dtype, "share": share})


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_model_without_trainable_parameters_is_refused(parallel: str, train: Train) -> None:
    with pytest.raises(ConfigurationError, match="no parameter to train: set requires_grad"):
        train(model=f"{MODELS}:CompletelyFrozen", parallel=parallel)


def test_batch_norm_with_batches_of_one_sample_is_refused(train: Train) -> None:
    message = r"cannot process a batch of shape \[1, 1, 8, 8\]: ValueError: Expected more than 1"
    with pytest.raises(ConfigurationError, match=message):
        train(model=f"{MODELS}:Normalized", batch_size=1)


def test_recomputed_activations_do_not_change_batch_norm_statistics(
    train: Train, tmp_path: Path
) -> None:
    settings = {"model": f"{MODELS}:Normalized", "epochs": 1}
    for name, checkpointing in (("kept", False), ("recomputed", True)):
        train(name, activation_checkpointing=checkpointing, **settings)
    kept, recomputed = (
        load_file(tmp_path / name / "export/model.safetensors") for name in ("kept", "recomputed")
    )
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_batch_norm_in_half_precision_can_be_sharded(
    precision: str, train: Train, tmp_path: Path
) -> None:
    settings = {"model": f"{MODELS}:Normalized", "precision": precision, "epochs": 1}
    for parallel in ("ddp", "fsdp"):
        assert train(parallel, parallel=parallel, **settings) == exit_codes.DONE
    replicated, sharded = (
        load_file(tmp_path / name / "export/model.safetensors") for name in ("ddp", "fsdp")
    )
    for name, tensor in replicated.items():
        torch.testing.assert_close(sharded[name], tensor)


def test_a_model_is_checked_in_the_precision_of_the_run(train: Train) -> None:
    model = f"{MODELS}:InFullPrecision"
    assert train(model=model, epochs=1) == exit_codes.DONE
    with pytest.raises(ConfigurationError, match="TypeError: only in fp32"):
        train("half", model=model, epochs=1, precision="bf16")


def test_error_of_a_model_during_training_is_fatal(tmp_path: Path) -> None:
    flags = [f"--model={MODELS}:Fragile", "--dataset=digits", f"--run-dir={tmp_path / 'run'}"]
    [program] = start_gang(flags, 1, tmp_path / "out")
    assert program.exit_code() == exit_codes.BAD_INPUT
    program.await_output("error in the program: TypeError: only two at a time")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_metrics_with_batch_norm_match_the_exported_weights(parallel: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = [f"--model={MODELS}:Normalized", "--dataset=digits", "--epochs=1"]
    flags += [f"--parallel={parallel}", "--batch-size=16", f"--run-dir={run_dir}"]
    gang = start_gang(flags, 2, tmp_path / "out")
    assert [program.exit_code() for program in gang] == [exit_codes.DONE] * 2
    manifest = read_manifest(run_dir / "export")
    network = load_network(run_dir / "export", manifest, f"{MODELS}:Normalized")
    metrics = held_out_metrics(network)
    assert manifest.metrics["accuracy"] == pytest.approx(metrics["accuracy"], abs=1e-9)
    assert manifest.metrics["loss"] == pytest.approx(metrics["loss"], rel=1e-5)


def held_out_metrics(network: torch.nn.Module) -> dict[str, float]:
    from training.data import load
    from training.export.artifacts import evaluate_on_cpu

    return evaluate_on_cpu(network, load("digits", Path("/"), (1, 8, 8), 0).held_out)


def test_model_of_a_resumed_gang_receives_only_batches_of_the_configured_size(
    tmp_path: Path,
) -> None:
    """Any other size would make compiled blocks dynamic for the rest of the run."""
    options = '--model-options={"file": "%s"}'
    flags = [f"--model={MODELS}:Recorded", "--dataset=synthetic", "--batch-size=64"]
    flags += [f"--run-dir={tmp_path / 'run'}", options % (tmp_path / "sizes")]
    first = start_gang([*flags, "--epochs=1"], 2, tmp_path / "first")
    assert [program.exit_code() for program in first] == [exit_codes.DONE] * 2
    (tmp_path / "run/export/manifest.json").unlink()
    (tmp_path / "sizes").unlink()
    second = start_gang([*flags, "--epochs=2"], 2, tmp_path / "second")
    assert [program.exit_code() for program in second] == [exit_codes.DONE] * 2
    sizes = (tmp_path / "sizes").read_text().split()
    # The program checks a model with two samples before it compiles it.
    assert sorted(sizes)[:2] == ["2", "2"] or sizes.count("2") == 2
    assert set(sizes) == {"2", "64"}
