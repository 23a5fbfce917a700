"""Gangs killed at random times, also during saves, lose no checkpoint."""

import secrets
import signal
import time
from pathlib import Path

from tests.training.programs import Program, start_gang, until
from training.checkpoints import storage
from workload import exit_codes, files

KILLS = 6
IN_SAVES = 2
"""Minimum number of kills during saves. The test continues until this number is reached."""
FLAGS = ["--model=digits-net", "--epochs=2000", "--batch-size=64", "--checkpoint-steps=2"]


def newest_intact_step(run_dir: Path) -> int:
    """Check that every checkpoint is intact, and return the step of the newest."""
    steps = 0
    for path in files.list_checkpoints(run_dir / "checkpoints"):
        seal = storage.read_seal(path)
        assert isinstance(seal, storage.Seal), seal
        assert storage.find_fault(path, seal.files) is None
        steps = seal.position.step
    return steps


def newest_name(run_dir: Path) -> str:
    """Return the name of the newest checkpoint, intact or not."""
    return max((path.name for path in files.list_checkpoints(run_dir / "checkpoints")), default="")


def is_training(gang: list[Program]) -> bool:
    assert all(program.process.is_alive() for program in gang), gang[0].text
    return '"event": "start"' in gang[0].text or '"event": "resume"' in gang[0].text


def test_no_checkpoint_is_lost_when_a_gang_is_killed(tmp_path: Path) -> None:
    run_dir, reached, kills, in_a_save = tmp_path / "run", 0, 0, 0
    while kills < KILLS or in_a_save < IN_SAVES:
        assert kills < 50, f"only {in_a_save} of {kills} kills interrupted a save"
        gang = start_gang([*FLAGS, f"--run-dir={run_dir}"], 2, tmp_path / str(kills))
        until(lambda gang=gang: is_training(gang))  # type: ignore[misc]
        # Wait for up to three saves, so that the run proceeds. Kill the gang after a random delay.
        for _ in range(kills % 4):
            newest = newest_name(run_dir)
            until(lambda newest=newest: newest_name(run_dir) != newest)  # type: ignore[misc]
        time.sleep(secrets.randbelow(100) / 1000)
        for program in gang:
            program.signal(signal.SIGKILL)
        assert [program.exit_code() for program in gang] == [-signal.SIGKILL] * 2
        assert "is damaged" not in gang[0].text
        kills += 1
        in_a_save += any((run_dir / "checkpoints").glob(".step-*.tmp"))
        last_step, reached = reached, newest_intact_step(run_dir)
        assert reached >= last_step
    assert reached > kills


def test_full_disk_ends_the_run_and_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    """Simulate a full disk by limiting files to 64 KiB while the gang runs."""
    run_dir = tmp_path / "run"
    flags = ["--model=digits-net", "--epochs=2000", f"--run-dir={run_dir}", "--step-delay=0.01"]
    gang = start_gang(flags, 2, tmp_path / "out")
    until(lambda: newest_intact_step(run_dir) > 0)
    last_step = newest_intact_step(run_dir)
    for program in gang:
        program.limit_files(64 * 1024)
    assert [program.exit_code() for program in gang] == [exit_codes.FAILED] * 2
    assert "the run cannot be saved" in gang[0].text
    assert newest_intact_step(run_dir) >= last_step
