"""The plugin's schema, made from the settings."""

import json
from pathlib import Path

from gpu_platform.plugin.host import VERSION, Provider

ROOT = Path(__file__).parents[2]


def test_everything_in_the_schema_has_a_description() -> None:
    schema = json.loads(Provider().schema or "")
    resources, types = schema["resources"], schema["types"]
    assert {name.rpartition(":")[2] for name in resources} == {
        "GpuStack",
        "InferenceService",
        "Storage",
        "Tenancy",
        "TrainingJob",
        "Volcano",
    }
    for name, made in {**resources, **types}.items():
        assert made["description"], name
        for key, field in {**made["properties"], **made.get("inputProperties", {})}.items():
            assert field.get("description"), f"{name}.{key}"
            # A plain value could not be an output of another resource.
            assert not field.get("plain"), f"{name}.{key}"


def test_the_plugin_has_the_version_of_the_project() -> None:
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()
