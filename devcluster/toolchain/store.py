"""Store of built tools: a directory per program, named by its pins, complete or absent."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from devcluster.toolchain.pins import Module, Program


@dataclass(frozen=True)
class Store:
    """Built tools of any number of checkouts below `root`."""

    root: Path

    def place(self, module: Module, program: Program) -> Path:
        """Return the path of a program once it is built."""
        return self.root / f"{program.name}-{module.digest()}" / program.name

    def add(self, module: Module, program: Program, built: Path) -> None:
        """Move a finished executable into the store atomically."""
        place = self.place(module, program)
        staged = built.with_name(f"{place.parent.name}.staged")
        staged.mkdir()
        shutil.move(built, staged / program.name)
        (staged / program.name).chmod(0o755)
        if place.parent.exists():  # its program was removed by hand
            shutil.rmtree(place.parent)
        staged.rename(place.parent)

    @contextmanager
    def workshop(self, report: Callable[[str], None]) -> Iterator[Path]:
        """Lock and yield a scratch directory on the same disk.

        A second process reports that it waits. Files of a killed process are removed.
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
