"""Completeness of generated documents; `make check` compares them with the code."""

import re
from pathlib import Path
from typing import Any

import pytest

from kube.kinds import KINDS
from policies.catalogue import RULES
from tools.generate import __main__ as generate
from tools.generate import blocks, configuration, policies
from tools.generate.blocks import is_allowed, pipeline_rows, team_rows

GRANTED: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["a"]},
]
ROLES: list[dict[str, Any]] = [
    {"metadata": {"name": "team", "namespace": "ml"}, "rules": GRANTED},
    {
        "metadata": {"name": "team", "namespace": "ml"},
        "roleRef": {"name": "team"},
        "subjects": [{"name": "vision"}],
    },
]


def test_every_job_kind_has_a_row_and_a_column() -> None:
    assert [line.split("`")[1] for line in blocks.kinds_table().splitlines()[2:]] == list(KINDS)
    head = blocks.capabilities_table().splitlines()[0]
    assert [cell.strip() for cell in head.split("|")[2:-1]] == list(KINDS)


def test_each_table_must_appear_exactly_once_in_the_docs(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="docs/ contains the tables , but must contain exactly one of each"
    ):
        blocks.filled({tmp_path / "page.md": "nothing"}, tmp_path)


def test_example_on_a_page_is_replaced_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text("new\n")
    tables = "".join(
        f"<!-- {name}: written by `make generate` -->\n<!-- end -->\n" for name in blocks.TABLES
    )
    text = f"{tables}<!-- example: example.py -->\n```python\nold\n```\n"
    (filled,) = blocks.filled({tmp_path / "page.md": text}, tmp_path).values()
    assert filled.endswith("<!-- example: example.py -->\n```python\nnew\n```\n")


def test_every_setting_has_a_description_and_a_kind() -> None:
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in configuration.page().splitlines()
        if line.startswith(("| `", "| **`"))
    ]
    assert len(rows) > 100
    assert [row for row in rows if "" in row or row[1] == "anything"] == []


def test_every_output_has_a_description() -> None:
    assert "|  |" not in blocks.outputs_table()


def test_every_rule_has_a_section() -> None:
    text = policies.page()
    assert all(f"\n### {rule.name}\n" in text for rule in RULES)


def test_stale_file_fails_the_check_and_is_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("old")
    monkeypatch.setattr(generate, "CHECKOUT", tmp_path)
    monkeypatch.setattr(generate, "generated", lambda: {page: "new"})
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate.main() == 1
    assert capsys.readouterr().out == "page.md is stale: run `make generate`\n"
    assert page.read_text() == "old"
    monkeypatch.setattr("sys.argv", ["generate"])
    assert generate.main() == 0
    assert page.read_text() == "new"
    monkeypatch.setattr("sys.argv", ["generate", "--check"])
    assert generate.main() == 0


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("get pods", True),
        ("get pods/worker-0", True),
        ("get pods --subresource=log", True),
        ("create pods --subresource=exec", False),
        ("patch deployments.apps", True),
        ("patch deployments", False),
        ("get configmaps/a", True),
        ("get configmaps/b", False),
        ("get configmaps", False),
    ],
)
def test_request_is_evaluated_by_the_rules_of_the_group(request_: str, expected: bool) -> None:
    assert is_allowed(ROLES, "vision", request_) is expected
    assert not is_allowed(ROLES, "others", request_)


def test_every_column_contains_allowed_and_denied_requests() -> None:
    for rows in (team_rows(), pipeline_rows()):
        columns = list(zip(*rows, strict=True))[2:]
        assert all({"yes", "no"} <= set(column) for column in columns)
