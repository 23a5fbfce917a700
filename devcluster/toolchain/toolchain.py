"""Makes a group of tools available: those that are installed as pinned, the others built."""

from dataclasses import dataclass
from pathlib import Path

from devcluster.toolchain import builder, files, go, installed, pins, progress
from devcluster.toolchain.pins import Group, Module, Program
from devcluster.toolchain.store import Store
from devcluster.toolchain.volcano import VolcanoFiles


@dataclass(frozen=True)
class Toolchain:
    """Where the tools of a group are. The last two are there from `simulated` upwards."""

    bin: Path
    """A folder for the front of PATH."""
    pulumi_home: Path
    """For PULUMI_HOME, with the Kubernetes provider in its plugin folder."""
    charts: Path
    """A Helm repository with Volcano's chart, to be served over HTTP."""
    volcano_crds: Path
    """Volcano's resource definitions, a YAML file each."""
    installed: tuple[str, ...]
    """Names of the tools that are the user's own."""


def ensure(group: Group, cache: Path, report: progress.Report) -> Toolchain:
    """Builds what is missing of a group and returns where everything is.

    An interrupted build goes on where it was; a second process waits for the first. Under a
    second when nothing is missing. DevclusterError with a remedy or a log when a tool cannot be
    built.
    """
    cache = cache.resolve()
    found = _find(group, cache)
    charts = VolcanoFiles.of(pins.load().module("volcano"), cache)
    wants_charts = group != "engine"
    if found.missing or (wants_charts and not charts.root.exists()):
        store = Store(cache / "tools")
        with store.workshop(report) as scratch:
            orders = _orders(_find(group, cache).missing)
            for order in orders:
                go.check(order.module.folder)
            builder.build(orders, store, scratch, cache / "logs", report)
            if wants_charts and not charts.root.exists():
                charts.make(pins.load().module("volcano"), scratch, cache / "logs" / "volcano.log")
        found = _find(group, cache)
    return _arrange(found, charts, cache)


def missing(group: Group, cache: Path) -> list[str]:
    """Names of the tools of a group that `ensure` would have to build."""
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


def _find(group: Group, cache: Path) -> _Found:
    store = Store(cache / "tools")
    pinned = pins.load().group(group)
    own = installed.find((p for _, p in pinned), cache, store.root / "installed.json")
    places = {p.name: store.place(m, p) for m, p in pinned if p.name not in own}
    return _Found(pinned, own, {name: place for name, place in places.items() if place.exists()})


def _orders(missing: list[tuple[Module, Program]]) -> list[builder.Order]:
    modules = {module.name: module for module, _ in missing}
    return [
        builder.Order(module, tuple(p for m, p in missing if m is module))
        for module in modules.values()
    ]


def _arrange(found: _Found, charts: VolcanoFiles, cache: Path) -> Toolchain:
    tools = cache / "tools"
    bin_folder = tools / f"bin-{pins.load().digest()}"
    home = cache / "pulumi-home"
    for _, program in found.pinned:
        own = program.name not in found.installed
        source = (found.built if own else found.installed)[program.name]
        folder = home / "plugins" / program.plugin if program.plugin else bin_folder
        files.put(source, folder / program.name, own=own)
    return Toolchain(bin_folder, home, charts.charts, charts.definitions, tuple(found.installed))
