"""The plugin's schema, which is generated from the settings."""

import inspect
import json
import tomllib
from pathlib import Path

import pytest
from pulumi.provider.experimental.util import camel_case

import gpu_platform
from gpu_platform.plugin.components import COMPONENTS, Deferred
from gpu_platform.plugin.host import VERSION, Provider
from infra.outputs import RunOutput
from kube.kinds import KINDS

ROOT = Path(__file__).parents[2]


def test_everything_in_the_schema_has_a_description() -> None:
    schema = json.loads(Provider().schema or "")
    resources, types = schema["resources"], schema["types"]
    assert {name.rpartition(":")[2] for name in resources} == {
        "FailureRecorder",
        "GpuStack",
        "InferenceService",
        "Monitoring",
        "NodeHealth",
        "Storage",
        "Tenancy",
        "TrainingJob",
        "Volcano",
    }
    for name, made in {**resources, **types}.items():
        assert made["description"], name
        for key, field in {**made.get("properties", {}), **made.get("inputProperties", {})}.items():
            assert field.get("description"), f"{name}.{key}"
            # A plain property does not accept outputs of other resources.
            assert not field.get("plain"), f"{name}.{key}"


def test_a_literal_type_becomes_an_enum() -> None:
    schema = json.loads(Provider().schema or "")
    kind = schema["resources"]["gpu-platform:index:TrainingJob"]["inputProperties"]["kind"]
    assert kind["$ref"] == "#/types/gpu-platform:index:TrainingJobKind"
    enum = schema["types"]["gpu-platform:index:TrainingJobKind"]
    assert {value["value"] for value in enum["enum"]} == set(KINDS)
    assert enum["type"] == "string"


def test_defaults_are_described_but_not_set_in_the_schema() -> None:
    # An SDK would send the default, and every explicitly set value changes the name of a run.
    assert '"default"' not in (Provider().schema or "")


def test_the_package_has_the_metadata_of_the_project() -> None:
    schema = json.loads(Provider().schema or "")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert schema["license"] == project["license"]
    assert schema["description"] == project["description"]
    assert schema["repository"] == project["urls"]["Repository"]
    assert [{"name": schema["publisher"]}] == project["authors"]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: component.__name__)
def test_component_has_the_same_outputs_in_python_and_in_the_schema(
    component: type[Deferred],
) -> None:
    schema = json.loads(Provider().schema or "")
    outputs = schema["resources"][f"gpu-platform:index:{component.__name__}"]["properties"]
    in_python = inspect.get_annotations(getattr(gpu_platform, component.__name__))
    assert set(outputs) == {camel_case(name) for name in in_python}


def test_summary_has_the_same_type_as_the_stack_output() -> None:
    schema = json.loads(Provider().schema or "")
    job = schema["resources"]["gpu-platform:index:TrainingJob"]["properties"]
    assert job["summary"]["$ref"] == "#/types/gpu-platform:index:RunOutput"
    run = schema["types"]["gpu-platform:index:RunOutput"]
    assert set(run["required"]) == set(RunOutput.__annotations__)


def test_the_plugin_has_the_version_of_the_project() -> None:
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()
