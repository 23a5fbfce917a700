"""Tools whose pinned version is already installed."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from devcluster.toolchain import files
from devcluster.toolchain.pins import Program

TIMEOUT_SECONDS = 20


def find(programs: Iterable[Program], cache: Path, cache_file: Path) -> dict[str, Path]:
    """Map each program that is installed at its pinned version to its executable.

    Executables in `cache` were built by this project and are skipped. `cache_file` stores the
    result for each tool until the tool changes, because some tools take half a second to print
    their version.
    """
    programs = list(programs)
    results = files.read_json(cache_file)
    known = len(results)
    programs_found: dict[str, Path] = {}
    for program in programs:
        if program.plugin:
            file = _find_plugin(program.plugin, program.name, cache)
        elif program.ask:
            file = _find_on_path(program, cache, results)
        else:
            continue
        if file:
            programs_found[program.name] = file
    if len(results) > known:
        files.write(cache_file, json.dumps(results, indent=1))
    return programs_found | _companions(programs, programs_found)


def search_path(cache: Path) -> str:
    """Return PATH without the directories in `cache`."""
    directories = [d for d in os.environ.get("PATH", "").split(os.pathsep) if d]
    return os.pathsep.join(d for d in directories if not Path(d).resolve().is_relative_to(cache))


def _find_on_path(program: Program, cache: Path, results: dict[str, bool]) -> Path | None:
    path = shutil.which(program.name, path=search_path(cache))
    if path is None:
        return None
    stat = Path(path).stat()
    key = f"{path} {stat.st_size} {stat.st_mtime_ns} {program.answer}"
    if key not in results:
        answer = _has_pinned_version(path, program)
        if answer is None:
            return None
        results[key] = answer
    return Path(path) if results[key] else None


def _has_pinned_version(executable: str, program: Program) -> bool | None:
    """Return whether a tool has the pinned version; None if it does not answer in time."""
    try:
        result = subprocess.run(
            [executable, *program.ask],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.escape(program.answer or "")
    output = result.stdout + result.stderr
    return re.search(rf"(?<![\w.]){version}(?![\w.+-])", output) is not None


def _find_plugin(plugin: str, name: str, cache: Path) -> Path | None:
    home = Path(os.environ.get("PULUMI_HOME") or "~/.pulumi").expanduser()
    file = home / "plugins" / plugin / name
    if file.resolve().is_relative_to(cache) or not os.access(file, os.X_OK):
        return None
    return file


def _companions(programs: Iterable[Program], main_programs: dict[str, Path]) -> dict[str, Path]:
    """Return the companion programs, if all of them are in the directory of their main program."""
    companions: dict[str, Path] = {}
    for name, main in main_programs.items():
        directory = main.resolve().parent
        paths = {p.name: directory / p.name for p in programs if p.beside == name}
        if all(os.access(file, os.X_OK) for file in paths.values()):
            companions |= paths
    return companions
