"""Stack files, read as Pulumi reads them; tests/engine compares the two readers."""

from pathlib import Path

import pytest

from gitops.errors import GitopsError
from gitops.stack_file import document, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [("no", "no"), ("on", "on"), ("y", "y"), ("1:30", "1:30"), ("True", True), ("1e3", 1000)],
)
def test_plain_scalars_have_the_same_types_as_in_pulumi(text: str, value: object) -> None:
    assert parse(f"x: {text}") == {"x": value}


def test_quoted_scalars_are_strings() -> None:
    assert parse("x: '1e3'") == {"x": "1e3"}


def test_explicit_key_overrides_a_merged_one() -> None:
    found = parse("a: &a {k: 1, only: 2}\nb: {k: 3, <<: *a}")
    assert found["b"] == {"k": 3, "only": 2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{retries: 1, retries: 2}", "the key 'retries' is defined twice"),
        ("{day: 2026-01-01}", "as a date and changes it; quote it"),
        ("{rate: .inf}", r"\.inf is not a finite number"),
        ("{null: 1}", "a key must be a string, not null"),
        ("{x: !!set {a}}", "set"),
        ("&a {x: *a}", "recursive"),
    ],
)
def test_values_that_pulumi_rejects_or_changes_are_rejected(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "Pulumi.lab.yaml"
    file.write_text(f"config: {{gpu-platform:training: {text}}}")
    with pytest.raises(GitopsError, match=f"Pulumi.lab.yaml cannot be read: .*(\n.*)*{problem}"):
        document(file)
