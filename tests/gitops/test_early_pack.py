"""A pack that is started early: shown by packs that tell what they were given."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from devcluster.paths import CHECKOUT
from gitops.early_pack.starting import started
from gitops.engine import Pack, Stack

PROJECT = {"description": "Rules", "version": "1.2.3"}
GOOD = """\
import os, sys, time
from beside import PORT
print("a warning", file=sys.stderr)
open(os.environ["TOLD"], "w").write(f"{os.getpid()} {os.getcwd()} {len(sys.argv)}")
print(PORT)
time.sleep(600)
"""
STARTER = """\
import sys, time
from pathlib import Path
from gitops.early_pack.starting import started
from gitops.engine import Pack, Stack
pack, project = map(Path, sys.argv[1:])
with started(Pack(pack), Stack("prod", project)):
    print("started", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return Stack("prod", tmp_path, variables={"TOLD": str(tmp_path / "told")})


def pack(folder: Path, program: str) -> Pack:
    made = folder / "pack"
    made.mkdir()
    options = {"virtualenv": os.path.relpath(sys.prefix, made)}
    document = {**PROJECT, "runtime": {"name": "python", "options": options}}
    (made / "PulumiPolicy.yaml").write_text(yaml.safe_dump(document))
    (made / "__main__.py").write_text(program)
    (made / "beside.py").write_text("PORT = 4711\n")
    return Pack(made, folder / "prod.json")


def as_the_engine_does(found: Pack) -> "subprocess.Popen[str]":
    project = yaml.safe_load((found.folder / "PulumiPolicy.yaml").read_text())
    python = found.folder / project["runtime"]["options"]["virtualenv"] / "bin" / "python"
    return subprocess.Popen(
        [python, found.folder, "127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{process}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "Z"


def told(stack: Stack) -> list[str]:
    return Path(stack.variables["TOLD"]).read_text().split()


def test_the_engine_is_told_what_the_pack_says_until_the_end(stack: Stack, tmp_path: Path) -> None:
    with started(pack(tmp_path, GOOD), stack) as found:
        relay = as_the_engine_does(found)
        assert relay.stdout is not None
        assert relay.stdout.readline() == "4711\n"
        process, folder, arguments = told(stack)
    out, error = relay.communicate(timeout=60)
    assert (out, error, relay.returncode) == ("", "a warning\n", 0)
    assert gone(int(process))
    assert (folder, arguments) == (str(tmp_path), "1")
    assert not found.folder.exists()


def test_it_is_the_same_project_with_the_same_configuration(stack: Stack, tmp_path: Path) -> None:
    given = pack(tmp_path, GOOD)
    with started(given, stack) as found:
        project = yaml.safe_load((found.folder / "PulumiPolicy.yaml").read_text())
        assert found.configuration == given.configuration
    assert project.items() >= PROJECT.items()


def test_why_a_pack_does_not_start_is_passed_on(stack: Stack, tmp_path: Path) -> None:
    with started(pack(tmp_path, "raise ValueError('no rules')"), stack) as found:
        out, error = as_the_engine_does(found).communicate(timeout=60)
    assert out == ""
    assert "ValueError: no rules" in error


def test_a_pack_ends_with_a_command_that_is_killed(stack: Stack, tmp_path: Path) -> None:
    given = pack(tmp_path, GOOD)
    command = subprocess.Popen(
        [sys.executable, "-c", STARTER, given.folder, tmp_path],
        cwd=CHECKOUT,
        env={**os.environ, **stack.variables, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "started\n"
    deadline = time.monotonic() + 240
    while not (tmp_path / "told").exists() or not told(stack):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    command.send_signal(signal.SIGKILL)
    command.communicate()
    process = int(told(stack)[0])
    while not gone(process):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_pack_without_an_environment_of_its_own_is_left_to_the_engine(
    stack: Stack, tmp_path: Path
) -> None:
    (tmp_path / "PulumiPolicy.yaml").write_text("runtime: python\n")
    given = Pack(tmp_path)
    with started(given, stack) as found:
        assert found is given


def test_the_projects_own_pack_is_started_early(tmp_path: Path) -> None:
    given = Pack(CHECKOUT / "policies")
    with started(given, Stack("prod", tmp_path)) as found:
        assert found.folder != given.folder
        relay = as_the_engine_does(found)
        assert relay.stdout is not None
        assert int(relay.stdout.readline()) > 0
    relay.communicate(timeout=60)
