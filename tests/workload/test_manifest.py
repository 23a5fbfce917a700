import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from inference.http.messages import json_response
from tests.unicode import ALPHABET
from workload.manifest import (
    MANIFEST_FILE,
    MAX_BYTES,
    Artifact,
    ExportError,
    Manifest,
    Weights,
    read_manifest,
    write_manifest,
)

ARTIFACT: dict[str, Any] = {
    "kind": "pt2",
    "file": "model.pt2",
    "size": 5,
    "sha256": "b" * 64,
    "relative_size": 1.5,
    "relative_speed": 0.9,
    "seconds": 0.1,
    "batch": 32,
}


def manifest(**changes: object) -> Manifest:
    fields: dict[str, object] = {
        "model": "digits-net",
        "input_shape": (1, 8, 8),
        "classes": ("no", "yes"),
        "metrics": {"accuracy": 0.75},
        "weights": {"size": 1, "sha256": "a" * 64},
        "torch_version": "2",
    }
    return Manifest.model_validate(fields | changes)


@given(
    options=st.dictionaries(
        st.from_regex(r"[a-z_]{1,9}", fullmatch=True),
        st.integers(-(2**53), 2**53) | st.booleans() | st.text(ALPHABET) | st.floats(-1e9, 1e9),
    ),
    tokens=st.integers(1, 10**6),
)
def test_written_manifest_is_read_back_unchanged(
    options: dict[str, Any], tokens: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    original = manifest(options=options, classes=(), outputs=tokens, artifacts=[ARTIFACT])
    write_manifest(folder, original)
    read = read_manifest(folder)
    assert read == original
    assert [*map(type, read.options.values())] == [*map(type, options.values())]


@given(
    st.text(ALPHABET, max_size=12).filter(
        lambda name: not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name)
    )
)
def test_arbitrary_invalid_file_names_are_rejected(name: str) -> None:
    for kind in (Weights, Artifact):
        with pytest.raises(ValidationError, match="file"):
            kind.model_validate(ARTIFACT | {"file": name})


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/b", "..", ".hidden", "a\n", "", "a\0"])
def test_path_traversal_in_file_names_is_rejected(name: str) -> None:
    with pytest.raises(ValidationError, match="file"):
        Artifact.model_validate(ARTIFACT | {"file": name})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 3}, "there are 2 classes for 3 outputs"),
        ({"classes": ()}, "outputs"),
        ({"artifacts": [ARTIFACT, ARTIFACT]}, "model.pt2 is listed twice"),
        ({"artifacts": [ARTIFACT, ARTIFACT | {"file": "b"}]}, "pt2 is listed twice"),
        ({"artifacts": [ARTIFACT | {"file": "manifest.json"}]}, "manifest.json is listed twice"),
        ({"artifacts": [ARTIFACT | {"file": "model.safetensors"}]}, "is listed twice"),
        ({"input_dtype": "float64"}, "input_dtype"),
        ({"format": 2}, "format"),
        ({"input_shape": (1, 0)}, "input_shape"),
        ({"outputs": 10**30, "classes": ()}, "outputs"),
    ],
)
def test_inconsistent_manifest_is_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        manifest(**changes)


def test_too_large_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / MANIFEST_FILE).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ExportError, match="is larger than 67108864 bytes"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**64, 10**30, 0.5, "text"])
def test_server_can_describe_every_setting(value: object) -> None:
    settings = manifest(settings={"seed": value}).settings
    assert settings["seed"] == pytest.approx(value)
    body = json_response({"settings": settings}).body
    assert json.loads(body) == {"settings": settings}


def test_number_of_outputs_defaults_to_the_number_of_classes() -> None:
    assert manifest().outputs == 2


def test_signature_is_derived_from_input_shape_and_type() -> None:
    assert manifest().signature.model_dump() == {
        "name": "images",
        "datatype": "FP32",
        "shape": (-1, 1, 8, 8),
    }
    tokens = manifest(classes=(), outputs=256, input_shape=(32,), input_dtype="int64")
    assert (tokens.signature.name, tokens.signature.datatype) == ("tokens", "INT64")


def test_manifest_contains_the_fields_that_older_servers_read(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    document = json.loads((tmp_path / "manifest.json").read_text())
    assert document["format"] == 1
    assert document["weights"].keys() == {"file", "size", "sha256"}
    assert {"model", "input_shape", "classes", "metrics", "torch_version"} <= document.keys()


def test_unknown_fields_from_later_versions_are_ignored(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(artifacts=[ARTIFACT | {"kind": "onnx"}]))
    path = tmp_path / "manifest.json"
    document = json.loads(path.read_text()) | {"later": 1}
    document["artifacts"][0]["later"] = document["weights"]["later"] = [2]
    path.write_text(json.dumps(document))
    assert read_manifest(tmp_path).artifacts[0].kind == "onnx"
