"""Completeness of generated documents; `make check` compares them with the code."""

import re
from pathlib import Path

import pytest

from kube.kinds import KINDS
from policies.catalogue import RULES
from tools.generate import __main__ as generate
from tools.generate import blocks, configuration, policies


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
