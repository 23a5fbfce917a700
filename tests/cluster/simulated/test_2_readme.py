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


INSTALL, UPDATE = (block for block in README if block.own_cluster)
PIP = "python3 -m venv .venv", ".venv/bin/pip"
UV = "uv venv --quiet .venv", "uv pip"
"""Commands that install the same packages as `PIP` in a tenth of the time."""


@pytest.mark.parametrize("installer", [UV, pytest.param(PIP, marks=pytest.mark.slow)])
def test_requirements_for_an_existing_cluster_are_installed(
    cluster: Platform, tmp_path: Path, installer: tuple[str, str]
) -> None:
    script = "\n".join(command for command in INSTALL.commands if ".venv" in command)
    for documented, command in zip(PIP, installer, strict=True):
        assert documented in script
        script = script.replace(documented, command)
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    _run_script(cluster, script, tmp_path)
    installed = {path.name for path in tmp_path.glob(".venv/lib/python*/site-packages/*")}
    assert {"pulumi", "pulumi_kubernetes"} <= installed
    assert "torch" not in installed


def test_readme_commands_for_an_existing_cluster_succeed(cluster: Platform) -> None:
    adapt_stack_file(cluster.checkout, "prod")
    # The Pulumi backend of the embedded cluster replaces `pulumi login`.
    first = [command for command in INSTALL.commands if command.startswith("pulumi stack")]
    preview, change = UPDATE.commands
    environment = 'eval "$(make --no-print-directory env)"'
    output = _run_script(cluster, "\n".join([environment, *first, preview]))
    assert "to create" in output
    assert change.replace(" up ", " preview ") == preview
    _run_script(cluster, f"{environment}\npulumi stack rm prod --yes")
