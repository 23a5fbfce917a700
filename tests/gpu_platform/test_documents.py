"""What is written from the code, or must be like it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_platform.plugin import arguments_source
from gpu_platform.plugin.host import VERSION, provider
from infra.outputs_table import PAGE, with_table

ROOT = Path(__file__).parents[2]


def test_the_plugins_arguments_are_those_of_the_settings() -> None:
    formatted = subprocess.run(
        [Path(sys.executable).with_name("ruff"), "format", "--line-length=100", "-"],
        input=arguments_source.source(),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    remedy = "run `python -m gpu_platform.plugin.arguments_source` and `ruff format gpu_platform`"
    assert arguments_source.FILE.read_text() == formatted, remedy


def test_the_table_of_outputs_is_current() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text()), "run `python -m infra.outputs_table`"


@pytest.mark.parametrize("page", ["reuse.md", "scale.md"])
def test_the_example_on_the_page_is_the_one_that_runs(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found
    for path, text in found:
        assert (ROOT / path).read_text() == text, path


def test_everything_in_the_plugins_schema_says_what_it_means() -> None:
    schema = json.loads(provider().schema or "")
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
