"""Every command of the README, executed as written."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.environments import adapt_stack_file
from tests.cluster.platform import ROOT, Platform
from tests.readme import Block, blocks

README = blocks(ROOT / "README.md")
# These commands are run by other tests of this tier, or by CI (.ci/run).
TESTED_ELSEWHERE = {"make up", "make down", "make check", "make test"}


def _run_script(platform: Platform, script: str, folder: Path | None = None) -> str:
    # `dev` is the stack for real nodes; this cluster has simulated nodes.
    script = script.replace("--stack dev", "--stack simulated").replace(
        "/dev.json", "/simulated.json"
    )
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder or platform.checkout,
        # Nothing runs in the environments that pip creates here, so it need not compile packages.
        env={**platform.environment, "NODES": "simulated", "PIP_NO_COMPILE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


TESTED_HERE = [b for b in README if not b.own_cluster and not set(b.commands) <= TESTED_ELSEWHERE]


@pytest.mark.parametrize("block", TESTED_HERE, ids=lambda block: block.commands[-1][:40])
def test_readme_commands_for_the_embedded_cluster_succeed(cluster: Platform, block: Block) -> None:
    assert _run_script(cluster, block.script)


def test_other_readme_commands_are_covered_by_other_tests_and_ci() -> None:
    other_commands = {
        c for b in README if b not in TESTED_HERE and not b.own_cluster for c in b.commands
    }
    assert other_commands == TESTED_ELSEWHERE
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert {"make check &", "make test"} <= set(ci)


def test_readme_commands_for_an_existing_cluster_succeed(cluster: Platform, tmp_path: Path) -> None:
    install, update = (block for block in README if block.own_cluster)
    pip = [command for command in install.commands if ".venv" in command]
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    _run_script(cluster, "\n".join(pip), tmp_path)
    assert not list((tmp_path / ".venv").rglob("torch"))
    adapt_stack_file(cluster.checkout, "prod")
    # The Pulumi backend of the embedded cluster replaces `pulumi login`.
    first = [command for command in install.commands if command.startswith("pulumi stack")]
    preview, change = update.commands
    environment = 'eval "$(make --no-print-directory env)"'
    output = _run_script(cluster, "\n".join([environment, *first, preview]))
    assert "to create" in output
    assert change.replace(" up ", " preview ") == preview
    _run_script(cluster, f"{environment}\npulumi stack rm prod --yes")
