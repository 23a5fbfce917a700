"""Pinned tools of the embedded cluster, built from source unless they are installed."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.toolchain import files, pins
from devcluster.toolchain.builder import Builder, Order, Report, Store, announcement
from devcluster.toolchain.go import Go
from devcluster.toolchain.manifests import OperatorFiles, VolcanoFiles
from devcluster.toolchain.pins import (
    Extra,
    Group,
    Module,
    Program,
)

TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Toolchain:
    """Paths of a group's tools. The `engine` group has neither charts nor definitions."""

    bin: Path
    """Directory to prepend to PATH."""
    pulumi_home: Path
    """Value of PULUMI_HOME, with the Kubernetes provider in its plugin directory."""
    charts: Path
    """Helm repository with Volcano's chart, to serve over HTTP."""
    volcano: VolcanoFiles
    """Volcano's custom resource definitions and webhook configurations."""
    installed: tuple[str, ...]
    """Names of the tools that were already installed."""
    manifests: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Kustomize directories of the requested extras, in the order of installation."""


def ensure(
    group: Group,
    cache: Path,
    report: Report,
    extras: Collection[Extra] = (),
    *,
    announce: Report | None = None,
) -> Toolchain:
    """Build the missing tools of a group and of the requested extras; return all paths.

    An interrupted build resumes where it stopped, and a second process waits for the first one. If
    no tool is missing, this takes less than a second. Go's caches are deleted after a complete
    build. `report` is called with the progress twice per second, and `announce` (default: `report`)
    once before the build.

    Raises:
        DevclusterError: If a tool cannot be built. The message contains a fix or the compiler's
            output.
    """
    cache = cache.resolve()
    go = Go(go_caches(cache))
    go.resume_removal()
    inventory = _find(group, cache, extras)
    charts = VolcanoFiles.of(_volcano(), cache)
    manifests = {
        str(module.group): OperatorFiles.of(module, cache)
        for module in pins.load().modules
        if module.group in extras and module.manifests
    }
    files_missing = (group != "engine" and not charts.root.exists()) or any(
        not operator.root.exists() for operator in manifests.values()
    )
    if inventory.missing or files_missing:
        store = Store(cache / "tools")
        with store.scratch_directory(report) as scratch:
            inventory = _find(group, cache, extras)
            orders = _orders(inventory.missing)
            for order in orders:
                go.check(order.module.directory)
            if orders:
                names = [program.name for order in orders for program in order.programs]
                minutes = sum(order.module.cpu_minutes for order in orders)
                (announce or report)(announcement(names, inventory.installed, minutes))
                Builder(go, store, scratch, cache / "logs", report).build(orders)
            if group != "engine" and not charts.root.exists():
                charts.make(_volcano(), go, scratch, cache / "logs" / "volcano.log")
            for name, operator in manifests.items():
                if not operator.root.exists():
                    operator.make(go, scratch, cache / "logs" / f"{name}.log")
            go.remove_caches()
        inventory = _find(group, cache, extras)
    # Keep the requested order, because an operator may depend on an earlier one.
    directories: dict[str, Sequence[Path]] = {
        name: manifests[name].directories for name in extras if name in manifests
    }
    return _link_tools(inventory, charts, directories, cache)


def _volcano() -> Module:
    return pins.load().module("tools")


def missing(group: Group, cache: Path, extras: Collection[Extra] = ()) -> list[str]:
    """Return the names of the tools of a group and of extras that `ensure` would have to build."""
    return [program.name for _, program in _find(group, cache.resolve(), extras).missing]


def go_caches(cache: Path) -> Path:
    """Return the directory of the caches that Go fills while tools are built."""
    return cache / "go"


@dataclass(frozen=True)
class _Inventory:
    pinned: list[tuple[Module, Program]]
    installed: dict[str, Path]
    built: dict[str, Path]

    @property
    def missing(self) -> list[tuple[Module, Program]]:
        existing = self.installed.keys() | self.built.keys()
        return [(module, p) for module, p in self.pinned if p.name not in existing]


def _find(group: Group, cache: Path, extras: Collection[Extra] = ()) -> _Inventory:
    store = Store(cache / "tools")
    pinned = pins.load().group(group, extras)
    found = _find_installed((p for _, p in pinned), cache, store.root / "installed.json")
    paths = {p.name: store.path(m, p) for m, p in pinned if p.name not in found}
    return _Inventory(pinned, found, {name: path for name, path in paths.items() if path.exists()})


def _orders(missing: list[tuple[Module, Program]]) -> list[Order]:
    modules = {module.name: module for module, _ in missing}
    return [
        Order(module, tuple(p for m, p in missing if m is module)) for module in modules.values()
    ]


def _link_tools(
    inventory: _Inventory,
    charts: VolcanoFiles,
    manifests: Mapping[str, Sequence[Path]],
    cache: Path,
) -> Toolchain:
    tools = cache / "tools"
    bin_directory = tools / f"bin-{pins.load().digest()}"
    home = cache / "pulumi-home"
    for _, program in inventory.pinned:
        built = program.name not in inventory.installed
        source = (inventory.built if built else inventory.installed)[program.name]
        directory = home / "plugins" / program.plugin if program.plugin else bin_directory
        files.install_link(source, directory / program.name, built=built)
    _disable_logs(home)
    installed_names = tuple(inventory.installed)
    return Toolchain(bin_directory, home, charts.charts, charts, installed_names, manifests)


def _disable_logs(pulumi_home: Path) -> None:
    """Keep Pulumi from logging every command. Pulumi has no setting for this.

    The logs take up to 500 MB and a tenth of the CPU time of a preview. A file with the name of the
    log directory prevents Pulumi from creating the directory, and Pulumi then does not log.
    """
    logs = pulumi_home / "logs"
    if logs.is_dir():
        shutil.rmtree(logs, ignore_errors=True)
    pulumi_home.mkdir(parents=True, exist_ok=True)
    logs.touch()


def _find_installed(programs: Iterable[Program], cache: Path, cache_file: Path) -> dict[str, Path]:
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


def _search_path(cache: Path) -> str:
    """Return PATH without the directories in `cache`."""
    directories = [d for d in os.environ.get("PATH", "").split(os.pathsep) if d]
    return os.pathsep.join(d for d in directories if not Path(d).resolve().is_relative_to(cache))


def _find_on_path(program: Program, cache: Path, results: dict[str, bool]) -> Path | None:
    path = shutil.which(program.name, path=_search_path(cache))
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
