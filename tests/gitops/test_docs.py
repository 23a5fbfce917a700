"""Commands and facts in the pages about pull requests, environments and runs."""

import re
import shlex
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from gitops.__main__ import main
from gitops.errors import BLOCKED, CHANGES, FAILED, UNCHANGED, USAGE
from tests.readme import blocks

PAGES = [CHECKOUT / "docs" / name for name in ("pull-requests.md", "environments.md", "runs.md")]
COMMANDS = sorted(
    {
        command
        for page in PAGES
        for block in blocks(page)
        for command in block.commands
        if command.startswith("python -m gitops")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_the_pages_are_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, _, name, *arguments = shlex.split(command)
    with pytest.raises(SystemExit) as exited:
        main([name, *(a for a in arguments if a != "--help"), "--help"])
    assert exited.value.code == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    assert {a for a in arguments if a.startswith("--")} <= known


def test_all_exit_statuses_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \|", PAGES[0].read_text(), re.MULTILINE)
    assert sorted(map(int, rows)) == sorted([UNCHANGED, CHANGES, BLOCKED, FAILED, USAGE])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"`((?:gitops|policies|\.github)/[\w./-]+)`", text))
    linked = {f"docs/{target}" for target in re.findall(r"\]\(([\w.-]+)\)", text)}
    assert named
    for name in named | linked:
        assert (CHECKOUT / name).exists(), name


def test_every_workflow_is_documented() -> None:
    text = PAGES[0].read_text()
    for file in (CHECKOUT / ".github" / "workflows").glob("*.yml"):
        assert f".github/workflows/{file.name}" in text
