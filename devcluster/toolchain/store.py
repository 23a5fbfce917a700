"""The folder of built tools: one folder a program, named by version and pins, whole or absent."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from devcluster.toolchain.pins import Module, Program


@dataclass(frozen=True)
class Store:
    """`root` holds the tools of any number of checkouts side by side."""

    root: Path

    def place(self, module: Module, program: Program) -> Path:
        """Return the path of a program once it is built."""
        return self.root / f"{program.name}-{module.digest()}" / program.name

    def add(self, module: Module, program: Program, built: Path) -> None:
        """Takes over a finished executable in one step."""
        place = self.place(module, program)
        staged = built.with_name(f"{place.parent.name}.staged")
        staged.mkdir()
        shutil.move(built, staged / program.name)
        (staged / program.name).chmod(0o755)
        if place.parent.exists():  # without its program: somebody has removed it by hand
            shutil.rmtree(place.parent)
        staged.rename(place.parent)

    @contextmanager
    def workshop(self, report: Callable[[str], None]) -> Iterator[Path]:
        """A scratch folder on the same disk, held by one process at a time.

        Another process waits and says so. What a killed one has left there is removed.
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
