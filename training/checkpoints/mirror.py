"""Copy of a run's checkpoints and export in an object store, written by rank 0.

The seal of a checkpoint (checkpoint.json) and the manifest of an export are written last and
removed first, so a directory that contains one of them is complete. A checkpoint is not deleted
from disk while it is being copied.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from training.checkpoints import storage
from training.checkpoints.storage import SEAL_FILE, Seal
from workload import files
from workload.files import create_unfinished
from workload.manifest import MANIFEST_FILE
from workload.progress import Message
from workload.report import emit
from workload.store import DamagedError, StoreDirectory

CHECKPOINTS: Final = "checkpoints"
EXPORT: Final = "export"
PROBE_FILE: Final = ".probe"
POLL_SECONDS: Final = 1.0


class Mirror:
    """Directory in an object store to which a background thread copies a run's checkpoints.

    If a newer checkpoint is submitted before the copy of an older one starts, the older one is
    skipped. Methods that wait call `beat` regularly, so that the watchdog does not mistake a long
    wait for a hang.
    """

    def __init__(self, run_dir: Path, url: str, keep: int, keep_best: bool) -> None:
        self._run_dir, self._keep, self._keep_best = run_dir, keep, keep_best
        self._store = StoreDirectory(f"{url}/{run_dir.name}")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mirror")
        self._newest: Path | None = None
        self._last: Future[None] | None = None
        self.copying: Path | None = None
        """Checkpoint that is being copied, if any."""

    def check(self) -> None:
        """Raise StoreError if objects cannot be written, listed or removed."""
        self._store.write(PROBE_FILE, b"")
        self._store.list_sizes(CHECKPOINTS)
        self._store.remove([PROBE_FILE])

    def submit(self, checkpoint: Path) -> None:
        """Copy a new or amended checkpoint in the background. A failure is logged as a warning."""
        self._newest = checkpoint
        self._last = self._thread.submit(self._copy, checkpoint)
        self._last.add_done_callback(_warn_if_failed)

    def wait(self, beat: Callable[[], object]) -> None:
        """Wait until the newest checkpoint is copied, calling `beat` regularly.

        Raise OSError on failure.
        """
        if self._last is not None:
            _await(self._last, beat)

    def restore(self, beat: Callable[[], object]) -> bool:
        """Download the newest intact checkpoint, calling `beat` regularly.

        Return False if there is none.
        """
        found = self._complete_checkpoints()
        for step in sorted(found, reverse=True):
            target, seal = files.checkpoint_of(self._run_dir / CHECKPOINTS, step), found[step]
            directory, name = create_unfinished(target), f"{CHECKPOINTS}/{target.name}"
            try:
                for file in seal.files:
                    self._store.download(
                        f"{name}/{file.name}",
                        directory / file.name,
                        file.size,
                        file.sha256,
                        lambda _: beat(),
                    )
            except DamagedError as error:
                emit(Message(event="warning", message=f"{error}; looking for an older checkpoint"))
                continue
            storage.seal_checkpoint(directory, seal)
            emit(Message(event="data", message=f"{target} was restored from {self._store.url}"))
            return True
        return False

    def copy_export(self, beat: Callable[[], object]) -> None:
        """Copy the finished export unless it has already been copied, calling `beat` regularly.

        Raise OSError on failure.
        """
        _await(self._thread.submit(self._copy_export), beat)

    def _copy_export(self) -> None:
        directory = self._run_dir / EXPORT
        manifest = (directory / MANIFEST_FILE).read_bytes()
        last = f"{EXPORT}/{MANIFEST_FILE}"
        if self._store.read(last) == manifest:
            return
        self._store.remove([last])
        paths = files.list_files(directory)
        names = {f"{EXPORT}/{path.relative_to(directory).as_posix()}": path for path in paths}
        # Remove the files of an earlier export of this run, because they contain previous weights.
        self._store.remove(self._store.list_sizes(EXPORT).keys() - names.keys())
        for name, path in names.items():
            if name != last:
                self._store.write(name, path)
        self._store.write(last, manifest)

    def _copy(self, checkpoint: Path) -> None:
        # Set `copying` before the comparison, so that a caller of `submit` sees an older checkpoint
        # that is still being copied.
        self.copying = checkpoint
        try:
            if checkpoint == self._newest:
                self._replace(checkpoint)
                self._rotate(files.step_of(checkpoint))
        finally:
            self.copying = None

    def _replace(self, checkpoint: Path) -> None:
        name = f"{CHECKPOINTS}/{checkpoint.name}"
        text = (checkpoint / SEAL_FILE).read_bytes()
        files, before = Seal.model_validate_json(text).files, self._seal(name)
        # Amending a checkpoint changes only its seal, so its files are not copied again.
        if before is None or before.files != files:
            self._store.remove([f"{name}/{SEAL_FILE}"])
            for file in files:
                self._store.write(f"{name}/{file.name}", checkpoint / file.name)
        self._store.write(f"{name}/{SEAL_FILE}", text)

    def _rotate(self, newest: int) -> None:
        complete = self._complete_checkpoints()
        losses = {step: seal.held_out_loss for step, seal in complete.items()}
        kept = storage.retained_steps(losses, newest, self._keep, self._keep_best)
        for step, names in self._list_objects().items():
            if step not in kept:
                self._store.remove(sorted(names, key=lambda name: not name.endswith(SEAL_FILE)))

    def _complete_checkpoints(self) -> dict[int, Seal]:
        paths = {
            step: files.checkpoint_of(Path(CHECKPOINTS), step) for step in self._list_objects()
        }
        seals = {step: self._seal(path.as_posix()) for step, path in paths.items()}
        return {step: seal for step, seal in seals.items() if seal is not None}

    def _list_objects(self) -> dict[int, list[str]]:
        """Map the step of each checkpoint, even an incomplete one, to the names of its objects."""
        found: dict[int, list[str]] = {}
        for name in self._store.list_sizes(CHECKPOINTS):
            match = files.CHECKPOINT.fullmatch(name.split("/")[1])
            if match:
                found.setdefault(int(match[1]), []).append(name)
        return found

    def _seal(self, name: str) -> Seal | None:
        text = self._store.read(f"{name}/{SEAL_FILE}")
        if text is None:
            return None
        seal = storage.parse_seal(text, f"{self._store.url}/{name}")
        return seal if isinstance(seal, Seal) else None


def _await(future: Future[None], beat: Callable[[], object]) -> None:
    while not wait([future], POLL_SECONDS).done:
        beat()
    future.result()


def _warn_if_failed(future: Future[None]) -> None:
    error = future.exception()
    if error is not None:
        message = f"the newest checkpoint could not be copied and exists only on disk: {error}"
        emit(Message(event="warning", message=message))
