"""Validation of the check's reports against the OpenReports schema from its Go module."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from devcluster.toolchain import Toolchain
from policies.check import main

MODULE = "github.com/openreports/reports-api@v0.2.1"
CHECKSUM = "h1:g9KS3yle9Y1elmww4TK9EkD1rl6inIaiIJPX6e+u680="
SCHEMA = Path("config/crd/openreports.io_reports.yaml")
POD = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{image: a}]}}\n"


@pytest.fixture(scope="module")
def schema(tools: Toolchain) -> Any:
    command = ["go", "mod", "download", "-json", MODULE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    module = json.loads(done.stdout)
    assert module["Sum"] == CHECKSUM
    definition = yaml.safe_load((Path(module["Dir"]) / SCHEMA).read_text())
    (version,) = (item for item in definition["spec"]["versions"] if item["name"] == "v1alpha1")
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
    return strict(schema)


def strict(schema: Any) -> Any:
    """Return the schema with unknown fields rejected, as in server-side validation."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def test_reports_match_the_openreports_schema(
    schema: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    assert main([str(path), "--format", "openreports"]) == 1
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, schema)
    report["results"][0]["result"] = "refused"
    with pytest.raises(jsonschema.ValidationError, match="refused"):
        jsonschema.validate(report, schema)
