"""actionlint on the workflows: unlike a schema, it checks expressions."""

import shutil
import subprocess
from pathlib import Path

import pytest

from devcluster.paths import CHECKOUT
from tests.platforms import program

MODULE = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"


@pytest.fixture(scope="session")
def actionlint() -> Path:
    """The program on PATH, else the pinned one, built once."""
    if installed := shutil.which("actionlint"):
        return Path(installed)
    return program(MODULE)


def lint(
    actionlint: Path, *files: Path, folder: Path = CHECKOUT
) -> subprocess.CompletedProcess[str]:
    # By default, actionlint runs shellcheck and pyflakes if they are installed. The result must not
    # depend on them.
    options = ["-no-color", "-shellcheck=", "-pyflakes="]
    return subprocess.run(
        [str(actionlint), *options, *map(str, files)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_actionlint_finds_no_problem(actionlint: Path) -> None:
    done = lint(actionlint, *sorted((CHECKOUT / ".github" / "workflows").glob("*.yml")))
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_a_planted_problem(actionlint: Path, tmp_path: Path) -> None:
    text = (CHECKOUT / ".github" / "workflows" / "stack.yml").read_text()
    broken = tmp_path / "stack.yml"
    broken.write_text(text.replace("steps.preview.outputs.status", "steps.previev.outputs.status"))
    done = lint(actionlint, broken, folder=tmp_path)
    assert done.returncode == 1
    assert "previev" in done.stdout
