"""Builds missing programs, one module after another, while the next ones are downloaded."""

import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from devcluster.toolchain import go, progress
from devcluster.toolchain.pins import Module, Program
from devcluster.toolchain.store import Store


@dataclass(frozen=True)
class Order:
    """What is to be built from one module."""

    module: Module
    programs: tuple[Program, ...]

    @property
    def title(self) -> str:
        """For progress lines: `kubernetes 1.34.3`."""
        return f"{self.module.name} {self.module.version}"

    @property
    def packages(self) -> list[str]:
        """Go packages to be built; none for programs that are only copied."""
        return [p.package for p in self.programs if p.package]


def build(
    orders: list[Order], store: Store, scratch: Path, logs: Path, report: progress.Report
) -> None:
    """Fills the store. DevclusterError with the log's last lines when a step fails."""
    with ThreadPoolExecutor(max_workers=1) as downloads:
        ahead = [downloads.submit(_prepare, order, scratch, logs) for order in orders]
        try:
            for order, prepared in zip(orders, ahead, strict=True):
                _await(prepared, f"downloading {order.title}", report)
                _build(order, store, scratch, logs, report)
        except BaseException:
            downloads.shutdown(wait=False, cancel_futures=True)
            raise


def _await(prepared: "Future[None]", what: str, report: progress.Report) -> None:
    wait([prepared], timeout=1)
    if not prepared.done():
        steps = progress.Steps(report, what)
        while not prepared.done():
            wait([prepared], timeout=1)
            steps.tick()
    prepared.result()


def _prepare(order: Order, scratch: Path, logs: Path) -> None:
    """A copy of the module's folder with the files that it embeds, and everything downloaded."""
    module = order.module
    work = scratch / module.name
    shutil.copytree(module.folder, work)
    log = _log(order, logs)
    log.unlink(missing_ok=True)
    for embedded in module.embed:
        source = go.module_folder(embedded.module, work, log) / embedded.file
        shutil.copyfile(source, work / source.name)
    for program in order.programs:
        if program.module:
            go.module_folder(program.module, work, log)
    if order.packages:
        go.fetch(order.packages, module.tags, work, log)


def _build(order: Order, store: Store, scratch: Path, logs: Path, report: progress.Report) -> None:
    names = ", ".join(p.name for p in order.programs)
    steps = progress.Steps(report, f"building {order.title} ({names})")
    work = scratch / order.module.name
    out = scratch / f"{order.module.name}.out"
    out.mkdir()
    log = _log(order, logs)
    if order.packages:

        def tick() -> None:
            steps.tick(lambda: progress.compiled(log))

        module = order.module
        go.build(order.packages, module.tags, module.ldflags, work, out, log, tick)
    for program in order.programs:
        store.add(order.module, program, _product(order.module, program, work, out, log))
    steps.done(f"built {order.title} ({names})")


def _product(module: Module, program: Program, work: Path, out: Path, log: Path) -> Path:
    """The new file of a program in the scratch folder, wherever Go has put it."""
    if program.package:
        return out / go.executable_name(program.package, module.name)
    copy = out / program.name
    shutil.copyfile(go.module_folder(program.module or "", work, log) / (program.file or ""), copy)
    return copy


def _log(order: Order, logs: Path) -> Path:
    return logs / f"{order.module.name}.log"
