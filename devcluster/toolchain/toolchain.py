"""Makes a group of tools available: installed tools in the pinned version, others are built."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.toolchain import files, installed, pins
from devcluster.toolchain.builder import Builder, Order, Store
from devcluster.toolchain.go import Go
from devcluster.toolchain.manifests import OperatorFiles, VolcanoFiles
from devcluster.toolchain.pins import Extra, Group, Module, Program
from devcluster.toolchain.progress import Report, announcement


@dataclass(frozen=True)
class Toolchain:
    """Paths of the tools of a group. Charts and definitions exist from `simulated` upwards."""

    bin: Path
    """Directory for the front of PATH."""
    pulumi_home: Path
    """Value of PULUMI_HOME, with the Kubernetes provider in its plugin directory."""
    charts: Path
    """Helm repository with Volcano's chart, to be served over HTTP."""
    volcano: VolcanoFiles
    """Volcano's custom resource definitions and webhook configurations."""
    installed: tuple[str, ...]
    """Names of the tools that were found installed."""
    manifests: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Kustomize directories of each requested extra that has some, in the order of installation."""


def ensure(
    group: Group,
    cache: Path,
    report: Report,
    extras: Collection[Extra] = (),
    *,
    announce: Report | None = None,
) -> Toolchain:
    """Build what is missing of a group and of the requested extras; return where everything is.

    An interrupted build resumes where it stopped, and a second process waits for the first. Takes
    less than a second if nothing is missing. Go's caches are deleted after a complete build.
    `report` is given the state of the build twice a second, `announce` (default: `report`) one
    line before it. Raises DevclusterError with a remedy or the compiler's message if a tool cannot
    be built.
    """
    cache = cache.resolve()
    go = Go(cache / "go")
    go.resume_removal()
    found = _find(group, cache, extras)
    charts = VolcanoFiles.of(_volcano(), cache)
    manifests = {
        str(module.group): OperatorFiles.of(module, cache)
        for module in pins.load().modules
        if module.group in extras and module.manifests
    }
    files_missing = (group != "engine" and not charts.root.exists()) or any(
        not made.root.exists() for made in manifests.values()
    )
    if found.missing or files_missing:
        store = Store(cache / "tools")
        with store.workshop(report) as scratch:
            found = _find(group, cache, extras)
            orders = _orders(found.missing)
            for order in orders:
                go.check(order.module.folder)
            if orders:
                names = [program.name for order in orders for program in order.programs]
                minutes = sum(order.module.cpu_minutes for order in orders)
                (announce or report)(announcement(names, found.installed, minutes))
                Builder(go, store, scratch, cache / "logs", report).build(orders)
            if group != "engine" and not charts.root.exists():
                charts.make(_volcano(), go, scratch, cache / "logs" / "volcano.log")
            for name, made in manifests.items():
                if not made.root.exists():
                    made.make(go, scratch, cache / "logs" / f"{name}.log")
            go.remove_caches()
        found = _find(group, cache, extras)
    # In the order of the request: an operator may need those before it.
    folders: dict[str, Sequence[Path]] = {
        name: manifests[name].folders for name in extras if name in manifests
    }
    return _arrange(found, charts, folders, cache)


def _volcano() -> Module:
    return pins.load().module("tools")


def missing(group: Group, cache: Path) -> list[str]:
    """Return the names of the tools of a group that `ensure` would have to build."""
    return [program.name for _, program in _find(group, cache.resolve()).missing]


@dataclass(frozen=True)
class _Found:
    pinned: list[tuple[Module, Program]]
    installed: dict[str, Path]
    built: dict[str, Path]

    @property
    def missing(self) -> list[tuple[Module, Program]]:
        there = self.installed.keys() | self.built.keys()
        return [(module, p) for module, p in self.pinned if p.name not in there]


def _find(group: Group, cache: Path, extras: Collection[Extra] = ()) -> _Found:
    store = Store(cache / "tools")
    pinned = pins.load().group(group, extras)
    own = installed.find((p for _, p in pinned), cache, store.root / "installed.json")
    places = {p.name: store.place(m, p) for m, p in pinned if p.name not in own}
    return _Found(pinned, own, {name: place for name, place in places.items() if place.exists()})


def _orders(missing: list[tuple[Module, Program]]) -> list[Order]:
    modules = {module.name: module for module, _ in missing}
    return [
        Order(module, tuple(p for m, p in missing if m is module)) for module in modules.values()
    ]


def _arrange(
    found: _Found,
    charts: VolcanoFiles,
    manifests: Mapping[str, Sequence[Path]],
    cache: Path,
) -> Toolchain:
    tools = cache / "tools"
    bin_folder = tools / f"bin-{pins.load().digest()}"
    home = cache / "pulumi-home"
    for _, program in found.pinned:
        own = program.name not in found.installed
        source = (found.built if own else found.installed)[program.name]
        folder = home / "plugins" / program.plugin if program.plugin else bin_folder
        files.put(source, folder / program.name, own=own)
    own_tools = tuple(found.installed)
    return Toolchain(bin_folder, home, charts.charts, charts, own_tools, manifests)
