"""Updates killed at random moments, and two concurrent updates, under load."""

import random
import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.cluster.platform import COLD_SECONDS, await_
from tests.faults.arena import Arena
from tests.faults.gangs import Gang, slow_steps
from tests.processes import kill_session

SEED = 20261121
UPDATE = "pulumi up --yes --skip-preview --non-interactive --stack dev"
EPOCHS = 6
"""With fewer epochs, the model may misclassify the sample of `make up`."""
COMMANDS = {"pulumi up": ["bash", "-c", UPDATE], "make up": ["make", "up", "NODES=real"]}


@pytest.fixture(scope="module")
def changed(arena: Arena) -> Iterator[Arena]:
    """Give every update a new run to create, and restore the stack at the end."""
    configuration = arena.platform.stack_file.read_text()
    yield arena
    arena.platform.stack_file.write_text(configuration)
    arena.platform.make("up")


@pytest.mark.parametrize("what", COMMANDS)
def test_killed_updates_are_completed_by_the_next_update(changed: Arena, what: str) -> None:
    moments = random.Random(SEED)  # noqa: S311 - to be repeatable

    def kill_two(gang: Gang) -> None:
        for turn in range(2):
            changed.platform.hyperparameters(seed=100 + turn, epochs=EPOCHS)
            kill_after(changed, COMMANDS[what], moments.uniform(1, 12))
        output = changed.platform.make("up")
        assert "(correct)" in output

    changed.survive(
        f"`{what}` killed twice with all its processes", kill_two, change=slow_steps(0.3)
    )


def test_second_concurrent_update_is_rejected_and_the_first_completes(changed: Arena) -> None:
    def update_twice(gang: Gang) -> None:
        changed.platform.hyperparameters(seed=200, epochs=EPOCHS)
        with changed.platform.started("up") as first:
            holder = changed.units.state / "lock.holder"
            await_(holder.exists, "the first command has started")
            assert "has been running since" in changed.platform.make("up", status=2)
            output, _ = first.communicate(timeout=COLD_SECONDS)
        assert first.returncode == 0, output
        assert re.search(r"accuracy (\d+\.\d+)%", output)

    changed.survive("two `make up` commands at once", update_twice, change=slow_steps(0.3))


def kill_after(arena: Arena, command: list[str], seconds: float) -> None:
    """Kill a command and all processes that it started (SIGKILL)."""
    process = subprocess.Popen(
        command,
        cwd=arena.platform.checkout,
        env=arena.platform.environment if command[0] == "make" else arena.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(seconds)
    kill_session(process)
    process.wait()
