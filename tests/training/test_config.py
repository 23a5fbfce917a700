import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from training.command_line import read_config, variable_of
from training.config import ALWAYS_LISTED, TrainingConfig, flag_of, written
from workload.configuration import ConfigurationError, problem_sentences

VALID = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["mnist-net", "simple-cnn"]),
        "dataset": st.sampled_from(["digits", "mnist", "synthetic"]),
        "epochs": st.integers(1, 10**6),
        "batch_size": st.integers(1, 10**6),
        "learning_rate": st.floats(1e-9, 10),
        "weight_decay": st.floats(0, 1),
        "seed": st.integers(0, 2**31 - 1),
        "run_dir": st.sampled_from(["/checkpoints/a", "/a b/c"]),
    },
)


@given(VALID)
def test_arguments_round_trip_through_the_configuration(values: dict[str, object]) -> None:
    config = TrainingConfig.model_validate(values)
    assert read_config(config.to_args(), {}) == config


def test_to_args_includes_only_explicit_settings() -> None:
    config = TrainingConfig.model_validate({"epochs": 15, "batch_size": 32})
    assert config.to_args() == ["--epochs=15", "--batch-size=32"]


def test_flag_overrides_its_environment_variable() -> None:
    environment = {"TRAINING_EPOCHS": "7", "TRAINING_SEED": "3", "TRAINING_SERVICE_HOST": "x"}
    config = read_config(["--epochs=5"], environment)
    assert (config.epochs, config.seed) == (5, 3)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"epochs": 0}, "epochs is 0: input should be greater than or equal to 1"),
        ({"epochs": True}, "epochs is True: a boolean is not valid here"),
        ({"epochs": 1.5}, "epochs is 1.5: input should be a valid integer"),
        ({"learning_rate": float("nan")}, "learning_rate is nan: input should be a finite number"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': input should be a valid number"),
        ({"learning_rate": 0}, "learning_rate is 0: input should be greater than 0"),
        ({"model": "resnet"}, "model is 'resnet': use digits-net, mnist-net"),
        ({"learningRate": 1}, "learningRate is not a known setting"),
        ({"hang_timeout": 5, "step_delay": 6}, "hang_timeout 5 must exceed step_delay 6"),
        (
            {"model": "resnet18", "model_options": {"image_size": [64]}},
            "model_options.image_size is [64]: must be a finite number, a string or a boolean",
        ),
        (
            {"model": "a:b", "model_options": '{"x": NaN}'},
            "model_options.x is nan: must be a finite number, a string or a boolean",
        ),
        (
            {"model": "a:b", "model_options": {"x": "\ud800"}},
            r"model_options is {'x': '\ud800'}: must be UTF-8",
        ),
        ({"model_options": "[" * 10**5}, ": must be a JSON object, such as"),
        ({"run_dir": "here"}, "run_dir is 'here': use an absolute path"),
        ({"run_dir": "/a/../b"}, "run_dir is '/a/../b': use an absolute path"),
        ({"run_dir": "/a\udcff"}, r"run_dir is '/a\udcff': must be UTF-8"),
        ({"model": "mnist-net", "dataset": "cifar10"}, "set dataset to digits or"),
    ],
)
def test_setting_error_is_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(values)
    [message] = problem_sentences(caught.value, {})
    assert sentence in message


@pytest.mark.parametrize("model", ["digits-net", "mnist-net"])
def test_models_with_small_inputs_accept_shards_of_small_images(model: str) -> None:
    config = TrainingConfig.model_validate({"model": model, "dataset": "shards"})
    assert config.dataset == "shards"


def test_all_errors_are_reported_at_once_under_the_names_that_the_user_wrote() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config(["--epochs=0", "--model=x"], {"TRAINING_BATCH_SIZE": "many"})
    for name in ("--epochs", "--model", "TRAINING_BATCH_SIZE"):
        assert f"{name} is " in str(caught.value)


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({}, 1800),
        ({"peer_timeout": 7200}, 7200),
        ({"peer_timeout": 7200, "hang_timeout": 60}, 60),
        ({"hang_timeout": 0}, 0),
    ],
)
def test_the_default_hang_timeout_exceeds_the_peer_timeout(
    values: dict[str, object], limit: float
) -> None:
    assert TrainingConfig.model_validate(values).hang_limit == limit


@pytest.mark.parametrize("argument", ["--epoch=1", "--epochs", "surplus"])
def test_error_for_an_unknown_argument_mentions_help(argument: str) -> None:
    with pytest.raises(ConfigurationError, match="--help"):
        read_config([argument], {})


def test_the_help_describes_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_config(["--help"], {})
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0
    for name, field in TrainingConfig.model_fields.items():
        assert flag_of(name) in text
        default = written(field.get_default(call_default_factory=True))
        assert f"(default: {default if default != '' else 'none'})" in text
        assert " ".join(str(field.description).split()) in text.replace("- ", "-")
    assert variable_of("batch_size") in text


def test_configuration_and_client_modules_do_not_import_torch() -> None:
    modules = "training.config, workload.exit_codes, workload.manifest, training.data"
    code = f"import sys, {modules}, inference.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documentation_names_every_setting() -> None:
    text = (Path(__file__).parents[2] / "docs/training.md").read_text()
    for name in TrainingConfig.model_fields:
        assert f"`{name}`" in text


def test_flags_override_variables_which_override_files(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("epochs = 3\nseed = 3\nbatch_size = 3\n[model_options]\nimage_size = 64\n")
    environment = {"TRAINING_SEED": "4", "TRAINING_BATCH_SIZE": "4", "TRAINING_CONFIG": str(file)}
    config = read_config(["--batch-size=5", "--model=resnet18"], environment)
    assert (config.epochs, config.seed, config.batch_size) == (3, 4, 5)
    assert config.model_options == {"image_size": 64}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs = many", "is not valid TOML"),
        pytest.param("metrics = " + "[" * 10**5, "is not valid TOML", id="brackets"),
        ("epochs = 0", r"epochs \(in .*run.toml\) is 0: input should be greater than"),
        ("metrics = [3]", r"metrics.0 \(in .*run.toml\) is 3: "),
        ("epoch = 1", r"epoch \(in .*run.toml\) is not a known setting \(did you mean 'epochs'\?"),
        (None, "cannot be read: No such file"),
    ],
)
def test_error_names_the_invalid_config_file(
    text: str | None, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=sentence):
        read_config([f"--config={file}"], {})


def test_newer_settings_affect_a_run_only_if_they_are_set() -> None:
    default = TrainingConfig()
    assert set(default.result_settings()) == set(ALWAYS_LISTED)
    changed = TrainingConfig(optimizer="sgd", model="resnet18", model_options={"image_size": 32})
    assert changed.result_settings() == default.result_settings() | {
        "model": "resnet18",
        "optimizer": "sgd",
        "model_options": '{"image_size": 32}',
    }


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "gpt"}, "set dataset to text or tokens"),
        (
            {"model_options": {"layers": 2}},
            "model_options of simple-cnn: layers is not a known setting",
        ),
        ({"model_options": "{"}, "must be a JSON object"),
        ({"parallel": "fsdp", "gradient_compression": "bf16"}, "with fsdp, set it to none"),
        ({"epochs": 3, "train_steps": 7}, "epochs 3 and train_steps 7 each set the run's"),
        ({"train_steps": 7, "train_samples": 9}, "train_steps 7 and train_samples 9 each set the"),
        ({"train_tokens": 7}, "dataset 'digits' has no tokens: set train_samples, train_steps"),
        ({"train_steps": 0}, "train_steps is 0: input should be greater than or equal to 1"),
        ({"train_samples": -1}, "train_samples is -1: input should be greater than or equal"),
        ({"train_steps": 2**60}, "input should be less than or equal to 9007199254740992"),
        ({"train_steps": True}, "train_steps is True: a boolean is not valid here"),
        ({"train_steps": 1.5}, "train_steps is 1.5: input should be a valid integer"),
        ({"train_steps": "10k"}, "train_steps is '10k': input should be a valid integer"),
        ({"data_url": "s3://data/birds"}, "dataset 'digits' has no manifest of its files"),
        ({"run_url": "file:///tmp/run"}, "use one of s3://, gs://, az:// with a bucket and"),
        ({"run_url": "s3://models/runs/"}, "or a trailing slash"),
        ({"run_url": "s3://models", "run_dir": "/runs/a#1"}, "cannot be part of run_url"),
        ({"run_url": "s3://models", "run_dir": "/runs/50%"}, "cannot be part of run_url"),
        ({"run_url": "s3://models/../runs"}, "use one of s3://, gs://, az:// with a bucket and"),
        ({"metrics": "mine:event"}, "another value is already named event"),
        ({"metrics": "mine:step"}, "another value is already named step"),
        ({"metrics": "mine:sha256"}, "another value is already named sha256"),
        ({"compile": 7}, "compile is 7: input should be a valid boolean"),
        ({"model": "my.module.factory"}, "or a custom model as package.module:factory"),
    ],
)
def test_incompatible_settings_are_reported(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate(values)
    assert sentence in "; ".join(problem_sentences(caught.value, {}))


def test_invalid_list_element_is_reported_under_the_name_that_the_user_wrote() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config(["--betas=0.9,1.5"], {variable_of("track"): "mlflow,comet"})
    betas, track = sorted(str(caught.value).split("; "))
    assert betas.startswith("--betas.1 is '1.5': ")
    assert track.startswith(f"{variable_of('track')}.1 is 'comet': ")


@pytest.mark.parametrize("url", ["s3://me:secret@models/runs", "az://models/runs?sig=secret"])
def test_credentials_in_a_url_are_refused_and_not_printed(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainingConfig.model_validate({"run_url": url})
    sentence = "; ".join(problem_sentences(caught.value, {}))
    assert "without a user, a query" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"epochs": 2, "seed": 3, "batch_size": 8}, ""),
        ({"weight_decay": 0.1}, "weight_decay is not supported by the TensorFlow program"),
        ({"model": "mnist-net"}, "set model to digits-net and dataset to digits"),
    ],
)
def test_settings_that_the_tensorflow_program_lacks_are_reported(
    settings: dict[str, object], problem: str
) -> None:
    values = {"model": "digits-net", "dataset": "digits", **settings}
    problems = TrainingConfig.model_validate(values).tensorflow_problems()
    assert problem in "".join(problems)
    assert len(problems) == bool(problem)
