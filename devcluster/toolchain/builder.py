"""Builder for missing programs. It builds one module after another and reports the progress."""

import os
import shutil
import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from devcluster.toolchain import files, go
from devcluster.toolchain.go import Go, Package
from devcluster.toolchain.pins import Module, Program

Report = Callable[[str], None]
"""Callback for each progress line."""

COMPILED_PER_SECOND = 150_000
"""Bytes of Go source that one processor compiles per second, averaged over all tools."""
DOWNLOAD_MINUTES = 1.0
"""Minutes to download and unpack the modules over a fast connection."""
LINK_COST = 10 * COMPILED_PER_SECOND
"""Cost of linking a program, in bytes of source that compile in the same time."""
EXPECTED_SPEED_SECONDS = 60.0
"""Time (s) after which the measured speed has the same weight as the expected speed."""
SEPARATE_PACKAGES = 2
"""Number of packages per module that are built separately. pins.toml lists the largest first."""


def announcement(programs: Collection[str], installed: Collection[str], cpu_minutes: float) -> str:
    """Return the line to print before a build: tools to build, estimated time, installed tools."""
    note = f"; already installed: {', '.join(sorted(installed))}" if installed else ""
    estimate = duration(60 * (cpu_minutes / (os.cpu_count() or 1) + DOWNLOAD_MINUTES))
    return f"building {', '.join(programs)} from Go modules, about {estimate}{note}"


class Meter:
    """Progress of a build. `packages` maps packages to the sizes of their sources in bytes."""

    def __init__(
        self, report: Report, packages: Mapping[str, int], programs: Collection[str]
    ) -> None:
        self._report = report
        self._sizes = {
            **packages,
            **dict.fromkeys((f"link {name}" for name in programs), LINK_COST),
        }
        self._done: set[str] = set()
        self._packages = len(packages)
        self._began = time.monotonic()

    def compiled(self, packages: Collection[str], current: str = "linking") -> None:
        """Mark packages as compiled, and report the progress and the current package."""
        self._done |= self._sizes.keys() & set(packages)
        done = sum(name.partition(" ")[0] != "link" for name in self._done)
        elapsed = clock(time.monotonic() - self._began)
        self._report(
            f"{done:,} of {self._packages:,} packages, {current}, {elapsed}, "
            f"about {duration(self.remaining_seconds())} left"
        )

    def linked(self, programs: Collection[str]) -> None:
        """Mark programs as linked."""
        self._done |= self._sizes.keys() & {f"link {name}" for name in programs}

    def remaining_seconds(self) -> float:
        """Return the estimated remaining time in seconds."""
        done = sum(self._sizes[name] for name in self._done)
        remaining = sum(self._sizes.values()) - done
        expected = COMPILED_PER_SECOND * (os.cpu_count() or 1)
        elapsed = time.monotonic() - self._began
        return (
            remaining
            * (elapsed + EXPECTED_SPEED_SECONDS)
            / (done + EXPECTED_SPEED_SECONDS * expected)
        )

    def end(self) -> None:
        """Report the duration of the build."""
        programs = len(self._sizes) - self._packages
        self._report(f"built {programs} tools in {clock(time.monotonic() - self._began)}")


def clock(seconds: float) -> str:
    """Return minutes and seconds, such as `3:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def duration(seconds: float) -> str:
    """Return a rounded duration, such as `12 min` or, below 90 seconds, `40 s`."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} s"
    return f"{seconds / 60:.0f} min"


@dataclass(frozen=True)
class Store:
    """Directory of built tools, shared by any number of checkouts."""

    root: Path

    def path(self, module: Module, program: Program) -> Path:
        """Return the path at which a program is stored."""
        return self.root / f"{program.name}-{module.digest()}" / program.name

    def add(self, module: Module, program: Program, built: Path) -> None:
        """Move a finished executable into the store atomically."""
        path = self.path(module, program)
        staged = built.with_name(f"{path.parent.name}.staged")
        staged.mkdir()
        shutil.move(built, staged / program.name)
        (staged / program.name).chmod(0o755)
        if path.parent.exists():  # a leftover directory without the program
            shutil.rmtree(path.parent)
        staged.rename(path.parent)

    @contextmanager
    def scratch_directory(self, report: Callable[[str], None]) -> Iterator[Path]:
        """Lock the store and yield a scratch directory on the same file system.

        If another process holds the lock, report this and wait. Remove files that a killed process
        left behind.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("another process is building the tools: waiting for it")
            lock.acquire()
        try:
            scratch = self.root / ".work"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            yield scratch
            shutil.rmtree(scratch)
        finally:
            lock.release()


@dataclass(frozen=True)
class Order:
    """Programs to build from one module."""

    module: Module
    programs: tuple[Program, ...]

    @property
    def packages(self) -> list[str]:
        """Go packages to build. Programs that are only copied have none."""
        return list(dict.fromkeys(p.package for p in self.programs if p.package))


class Builder:
    """Builder that works in a scratch directory and puts the finished programs into the store."""

    def __init__(self, tool: Go, store: Store, scratch: Path, logs: Path, report: Report) -> None:
        self._go = tool
        self._store = store
        self._scratch = scratch
        self._logs = logs
        self._report = report

    def build(self, orders: Sequence[Order]) -> None:
        """Build the programs of one module after another.

        Raise DevclusterError with the compiler's message if a build fails.
        """
        package_sizes: list[dict[str, int]] = []
        for order in orders:
            package_sizes.append(
                {_counter_name(order.module, p.path): p.size for p in self._prepare(order)}
            )
        self._go.remove_archives()
        packages = dict(ChainMap(*package_sizes))
        meter = Meter(self._report, packages, [p.name for o in orders for p in o.programs])
        for order, sizes in zip(orders, package_sizes, strict=True):
            self._build(order, meter)
            meter.compiled(sizes)
        meter.end()

    def _prepare(self, order: Order) -> list[Package]:
        """Prepare a module and download its dependencies; return the packages to compile."""
        module = order.module
        work, log = self._work(module), self._log(module)
        shutil.copytree(module.directory, work)
        log.unlink(missing_ok=True)
        status = f"downloading the modules of {module.title}"
        self._report(status)
        for embedded in module.embed:
            source = self._go.module_directory(embedded.module, work, log) / embedded.file
            shutil.copyfile(source, work / source.name)
        for overlay in module.overlays:
            source = self._go.module_directory(overlay.module, work, log)
            files.link_missing_files(work / overlay.folder, source)
            self._go.replace_module(overlay.module, overlay.folder, work, log)
        for program in order.programs:
            if program.module:
                self._go.module_directory(program.module, work, log)
        if not order.packages:
            return []
        tool = self._go.with_cgo(module.cgo)
        return tool.stale_packages(
            order.packages, module.flags, work, log, lambda: self._report(status)
        )

    def _build(self, order: Order, meter: Meter) -> None:
        """Build the programs of an order and move them into the store."""
        module = order.module
        work, log = self._work(module), self._log(module)
        out = self._scratch / f"{module.name}.out"
        out.mkdir()
        if order.packages:
            built = {p.name: out / _executable(module, p) for p in order.programs if p.package}

            def tick(events: Path) -> None:
                started = list(go.started_packages(events))
                meter.linked([name for name, file in built.items() if file.exists()])
                meter.compiled([_counter_name(module, path) for path in started], *started[-1:])

            tool = self._go.with_cgo(module.cgo)
            for packages in _batches(order.packages):
                tool.build(packages, module.flags, work, out, log, tick)
        for program in order.programs:
            self._store.add(module, program, self._product(module, program, work, out, log))
        meter.linked([program.name for program in order.programs])

    def _product(self, module: Module, program: Program, work: Path, out: Path, log: Path) -> Path:
        """Link or copy a program into the scratch directory, and return its path."""
        product = out / f"{program.name}.product"
        if program.package:
            files.link(out / _executable(module, program), product)
            return product
        source = self._go.module_directory(program.module or "", work, log) / (program.file or "")
        shutil.copyfile(source, product)
        return product

    def _work(self, module: Module) -> Path:
        return self._scratch / module.name

    def _log(self, module: Module) -> Path:
        return self._logs / f"{module.name}.log"


def _counter_name(module: Module, path: str) -> str:
    """Return the name of the progress counter for a package.

    All shared modules use one counter per package, because Go compiles the package only once.
    """
    return f"{'shared' if module.shared else module.name} {path}"


def _batches(packages: Sequence[str]) -> list[Sequence[str]]:
    """Split packages into batches: the first packages one by one, then the remaining ones together.

    This saves disk space, because Go keeps a second copy of compiled packages until a build ends.
    """
    first = [packages[at : at + 1] for at in range(min(SEPARATE_PACKAGES, len(packages)))]
    rest = packages[SEPARATE_PACKAGES:]
    return [*first, rest] if rest else first


def _executable(module: Module, program: Program) -> str:
    return go.executable_name(program.package or "", module.name)
