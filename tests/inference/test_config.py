from pathlib import Path

import pytest

from inference import __main__ as program
from inference.config import InferenceConfig, read_config, variable_of
from workload.configuration import ConfigurationError

REQUIRED = {"INFERENCE_MODEL_NAME": "digits", "INFERENCE_MODEL_PATH": "/models/digits-1a2b/export"}


def test_the_configuration_round_trips_through_the_environment() -> None:
    config = InferenceConfig.model_validate(
        {"model_name": "digits", "model_path": "/models/a/export", "port": 9000}
    )
    assert set(config.to_environment()) == {
        "INFERENCE_MODEL_NAME",
        "INFERENCE_MODEL_PATH",
        "INFERENCE_PORT",
    }
    assert read_config(config.to_environment()) == config


def test_max_share_per_peer_limits_the_memory_of_an_address() -> None:
    config = InferenceConfig(
        model_name="digits", model_path="/models", max_buffered_bytes=2**26, max_share_per_peer=0.3
    )
    assert config.max_bytes_per_peer == 20_132_659


def test_service_variables_set_by_kubernetes_are_ignored() -> None:
    assert read_config(REQUIRED | {"INFERENCE_SERVICE_HOST": "10.0.0.1"}).port == 8080


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"INFERENCE_PORT": "tcp://10.0.0.1:8080"}, "INFERENCE_PORT is 'tcp://10.0.0.1:8080'"),
        ({"INFERENCE_PORT": "0"}, "INFERENCE_PORT is '0'"),
        ({"INFERENCE_MODEL_NAME": "Digits/1"}, "INFERENCE_MODEL_NAME is 'Digits/1'"),
        ({"INFERENCE_MODEL_PATH": "export"}, "use an absolute path"),
        ({"INFERENCE_POLL_SECONDS": "inf"}, "should be a finite number"),
        ({"INFERENCE_DEVICE": "tpu"}, "'auto', 'cpu' or 'cuda'"),
        (
            {"INFERENCE_PRECISION": "bf16", "INFERENCE_BACKEND": "int8"},
            "precision bf16 is not available with the int8 backend",
        ),
    ],
)
def test_error_names_the_invalid_variable(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_config(REQUIRED | change)


def test_all_missing_variables_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_config({})
    assert str(caught.value) == "INFERENCE_MODEL_NAME is missing; INFERENCE_MODEL_PATH is missing"


def test_the_documentation_names_every_variable_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs/inference.md").read_text()
    for name, field in InferenceConfig.model_fields.items():
        default = "required" if field.is_required() else f"`{field.default}`"
        assert f"| `{variable_of(name)}` | {default} |" in text


def test_help_describes_every_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["inference", "--help"])
    with pytest.raises(SystemExit, match="0"):
        program.main()
    output = capsys.readouterr().out
    for name, field in InferenceConfig.model_fields.items():
        default = "required" if field.is_required() else f"default: {field.default!r}"
        assert f"{variable_of(name)} ({default})\n    {(field.description or '')[:20]}" in output
