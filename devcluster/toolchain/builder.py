"""Builds missing programs, one module after another, with one line of progress for all."""

import shutil
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.toolchain import go
from devcluster.toolchain.go import Go, Package
from devcluster.toolchain.pins import Module, Program
from devcluster.toolchain.progress import Meter, Report
from devcluster.toolchain.store import Store


@dataclass(frozen=True)
class Order:
    """What is to be built from one module."""

    module: Module
    programs: tuple[Program, ...]

    @property
    def packages(self) -> list[str]:
        """Go packages to be built; none for programs that are only copied."""
        return [p.package for p in self.programs if p.package]


class Builder:
    """Builds orders in a scratch directory and puts the programs into the store."""

    def __init__(self, tool: Go, store: Store, scratch: Path, logs: Path, report: Report) -> None:
        self._go = tool
        self._store = store
        self._scratch = scratch
        self._logs = logs
        self._report = report

    def build(self, orders: Sequence[Order]) -> None:
        """Fill the store. Raises DevclusterError with the compiler's message if a build fails."""
        counted: list[dict[str, int]] = []
        for order in orders:
            counted.append({_counted(order.module, p.path): p.size for p in self._prepare(order)})
        packages = dict(ChainMap(*counted))
        meter = Meter(self._report, packages, [p.name for o in orders for p in o.programs])
        for order, compiled in zip(orders, counted, strict=True):
            self._build(order, meter)
            meter.compiled(compiled)
        meter.end()

    def _prepare(self, order: Order) -> list[Package]:
        """Copy the module's directory and the files that it embeds, and download dependencies."""
        module = order.module
        work, log = self._work(module), self._log(module)
        shutil.copytree(module.folder, work)
        log.unlink(missing_ok=True)
        what = f"downloading the modules of {module.title}"
        self._report(what)
        for embedded in module.embed:
            source = self._go.module_folder(embedded.module, work, log) / embedded.file
            shutil.copyfile(source, work / source.name)
        for program in order.programs:
            if program.module:
                self._go.module_folder(program.module, work, log)
        if not order.packages:
            return []
        return self._go.stale(order.packages, module.flags, work, log, lambda: self._report(what))

    def _build(self, order: Order, meter: Meter) -> None:
        module = order.module
        work, log = self._work(module), self._log(module)
        out = self._scratch / f"{module.name}.out"
        out.mkdir()
        if order.packages:
            names = {_executable(module, p): p.name for p in order.programs if p.package}

            def tick(events: Path) -> None:
                begun = list(go.begun(events))
                meter.linked([names[file.name] for file in out.iterdir() if file.name in names])
                meter.compiled([_counted(module, path) for path in begun], *begun[-1:])

            self._go.build(order.packages, module.flags, work, out, log, tick)
        for program in order.programs:
            self._store.add(module, program, self._product(module, program, work, out, log))
        meter.linked([program.name for program in order.programs])

    def _product(self, module: Module, program: Program, work: Path, out: Path, log: Path) -> Path:
        """Return the new file of a program in the scratch directory."""
        if program.package:
            return out / _executable(module, program)
        source = self._go.module_folder(program.module or "", work, log) / (program.file or "")
        copy = out / program.name
        shutil.copyfile(source, copy)
        return copy

    def _work(self, module: Module) -> Path:
        return self._scratch / module.name

    def _log(self, module: Module) -> Path:
        return self._logs / f"{module.name}.log"


def _counted(module: Module, path: str) -> str:
    """Return the name under which a package counts: once for all shared modules."""
    return f"{'shared' if module.shared else module.name} {path}"


def _executable(module: Module, program: Program) -> str:
    return go.executable_name(program.package or "", module.name)
