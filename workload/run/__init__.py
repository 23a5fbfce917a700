"""Library that makes any training program a run of the platform; it needs only torch.

`Run` handles the run's directory, atomic checkpoints, SIGTERM, exit codes, lines of progress,
metrics, hangs and the manifest of the export, for one process or a gang.
"""

import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NoReturn, Self, SupportsFloat, cast

import torch
import torch.distributed as dist

from workload import exit_codes, files
from workload.exit_codes import FatalError
from workload.report import conclude, emit
from workload.run import folders
from workload.run.ranks import Group, Vote, all_or_none, joined, on_rank0, rank
from workload.run.watchdog import Watchdog
from workload.tracking import track

__all__ = ["FatalError", "Run"]

Action = Callable[[Path], object]


class Run:
    """A run of `steps` steps, entered after the process group is initialized.

    All ranks call all methods in the same order. `directory` is shared by all processes; the
    default is $RUN_DIR. A process without a step for `hang_timeout` seconds exits with 76. The
    first process of a node serves metrics on `metrics_port`. 0 disables either.
    """

    newest: Path | None = None
    """Directory of the checkpoint to resume from; None in a new run."""

    def __init__(
        self,
        steps: int,
        directory: str | Path | None = None,
        *,
        keep: int = 2,
        log_every: int = 10,
        hang_timeout: float = 1800,
        metrics_port: int = 0,
    ) -> None:
        self.directory = Path(directory or os.environ.get("RUN_DIR") or "run")
        self._checkpoints, self._export = self.directory / "checkpoints", self.directory / "export"
        self._steps, self._keep, self._log_every, self._port = steps, keep, log_every, metrics_port
        self._watchdog, self._limit = Watchdog(hang_timeout), hang_timeout or 86400
        self._stepped, self._group = time.monotonic(), cast(Group, None)
        self._fault: FatalError | None = None
        self._handlers: dict[int, Any] = {}
        self._values: dict[str, Any] = {"step": 0, "checkpoint_step": 0}
        self._values |= {"step_seconds_count": 0, "step_seconds_sum": 0.0}

    def __enter__(self) -> Self:
        self._watchdog.__enter__()
        try:
            if joined():
                limit = timedelta(seconds=self._limit)
                self._group = cast(Group, dist.new_group(backend="gloo", timeout=limit))
            self._vote = Vote(self._group)
            if self._port and os.environ.get("LOCAL_RANK", "0") == "0":
                self._serve_metrics()
            if on_rank0((self._export / "manifest.json").exists, self._group):
                self._emit("finished", export=str(self._export), already=True)
                self._leave(exit_codes.DONE)
            services = os.environ.get("RUN_TRACK", "").split(",")
            on_rank0(lambda: track(services, self.directory), self._group)
            found = on_rank0(lambda: folders.recover(self._checkpoints), self._group)
            self.newest = next(iter(found), None)
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        # Not earlier: there is nothing to save, and the process would wait for a lost peer.
        self._handlers = self._vote.listen()
        return self

    def resume(self, load: Action = lambda _: None) -> int:
        """Call `load(directory)` with the newest checkpoint; return its step, 0 in a new run."""
        if newest := self.newest:
            all_or_none(lambda: load(newest), self._group)
        step = folders.step_of(newest) if newest else 0
        self.resumed(step)
        return step

    def resumed(self, step: int) -> None:
        """Report the step after which a framework resumes by itself; 0 in a new run."""
        self._values |= {"step": step, "checkpoint_step": step}
        fields = {**self._progress(step), "processes": dist.get_world_size() if joined() else 1}
        self._emit("resume" if step else "start", run_dir=str(self.directory), **fields)
        self._progressed()

    def step(self, step: int, loss: SupportsFloat, save: Action, *, due: bool = False) -> None:
        """Report a step, and save with `save(directory)` if it is due or the run has to stop.

        If the run has to stop, the process exits with 75. Raise FatalError, in all processes, if a
        loss that rank 0 logs or the last one before a save is NaN.
        """
        self.report(step, loss)
        stop = self.should_stop()
        if due or stop:
            self.save(step, save)
        if stop:
            self.interrupt(step)

    def report(self, step: int, loss: SupportsFloat | None = None) -> None:
        """Report a step as progress, and its loss if it is known.

        The loss is read from a GPU only for lines, checkpoints and metrics. A NaN is not logged: it
        stops all processes, whose `save` or `finish` raises FatalError.
        """
        self._values["step_seconds_count"] += step != self._values["step"]
        self._values["step_seconds_sum"] += self._progressed()
        self._values["step"] = step
        if loss is not None:
            # Detached, so that the graph of a step is freed before the next one.
            self._values["loss"] = loss.detach() if isinstance(loss, torch.Tensor) else loss
            if rank() == 0 and (step % self._log_every == 0 or step == self._steps):
                try:
                    self._emit("step", loss=self._finite_loss(), **self._progress(step))
                except FatalError as fault:
                    self._fault = fault

    def should_stop(self) -> bool:
        """Return whether the run has to be saved and interrupted; call it once a step.

        True if, by the previous step, a process has received SIGTERM or found a NaN loss.
        """
        return self._vote.cast(self._fault is not None)

    def save(self, step: int, write: Action) -> None:
        """Save a checkpoint: each rank writes its files with `write(directory)`, in any format.

        The directory gets its final name when all files are on disk. Raise FatalError, in all
        processes, if the loss of one of them is NaN.
        """

        def rotate() -> None:
            for path in folders.list_checkpoints(self._checkpoints)[: -self._keep]:
                files.remove_folder(path)

        self._write(folders.checkpoint_of(self._checkpoints, step), write)
        on_rank0(rotate, self._group)
        self.saved(step)

    def saved(self, step: int) -> None:
        """Report a checkpoint that the framework has saved itself."""
        self._values["checkpoint_step"] = step
        self._emit("checkpoint", step=step)
        self._progressed()

    def interrupt(self, step: int) -> NoReturn:
        """Exit with 75, after the state was saved."""
        self._emit("interrupted", step=step)
        self._leave(exit_codes.INTERRUPTED)

    def finish(
        self, write: Action, metrics: Mapping[str, SupportsFloat], **manifest: object
    ) -> None:
        """Export the model: rank 0 writes it with `write(directory)`, then its manifest.

        For the model server, write model.safetensors, and pass model, options, input_shape, and
        classes or outputs as arguments. Raise FatalError if a metric or a loss is not finite.
        """
        results = {name: float(value) for name, value in metrics.items()}
        weights: dict[str, object] = {}

        def export(folder: Path) -> None:
            if joined() and rank() != 0:
                return
            for name, value in results.items():
                if not math.isfinite(value):
                    raise FatalError(f"metric {name} is {value}: results must be finite")
            write(folder)
            listed = {
                name: {"file": name, "size": path.stat().st_size, "sha256": files.sha256_of(path)}
                for path in sorted(folder.rglob("*"))
                if path.is_file() and (name := str(path.relative_to(folder)))
            }
            weights.update(listed.get("model.safetensors", {}))
            content = {"metrics": results, "run": self.directory.name, **manifest}
            content |= {"files": [*listed.values()], "torch_version": torch.__version__}
            content |= {"weights": weights} if weights else {}
            (folder / "manifest.json").write_text(json.dumps(content, indent=2))

        self._vote.result()
        self._write(self._export, export)
        digest = weights.get("sha256", "")
        self._emit("finished", **results, export=str(self._export), sha256=digest)

    def _write(self, target: Path, write: Action) -> None:
        """Write a directory with all ranks, and rename it to `target` when it is on disk."""
        all_or_none(self._finite_loss, self._group)
        folder = on_rank0(lambda: files.create_unfinished(target), self._group)
        all_or_none(lambda: write(folder), self._group)
        if os.environ.get("LOCAL_RANK", "0") == "0":
            files.sync_files(folder)
        all_or_none(lambda: None, self._group)
        on_rank0(lambda: files.publish_folder(folder), self._group)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, *_: object
    ) -> None:
        self._watchdog.__exit__()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if isinstance(error, Exception):
            code = exit_codes.BAD_INPUT if isinstance(error, FatalError) else exit_codes.FAILED
            if code == exit_codes.FAILED:
                traceback.print_exception(error)
            message = f"{type(error).__name__}: {error}"
            conclude("error", message=message, rank=str(rank()), exit_code=code)
            self._leave(code)

    def _progressed(self) -> float:
        """Record progress; return the seconds since the previous call."""
        before, self._stepped = self._stepped, time.monotonic()
        self._watchdog.beat()
        return self._stepped - before

    def _progress(self, step: int) -> dict[str, object]:
        return {"step": step, "done_epochs": round(step / self._steps, 6), "epochs": 1}

    def _finite_loss(self) -> float:
        if self._fault is not None:
            raise self._fault
        loss = float(self._values.get("loss", 0))
        if not math.isfinite(loss):
            raise FatalError(
                f"the loss became {loss} by step {self._values['step']}: lower the learning rate, "
                "or look for wrong values in the data; nothing was saved since the last checkpoint"
            )
        return loss

    def _emit(self, event: str, **fields: object) -> None:
        if rank() == 0:
            (conclude if event in ("finished", "interrupted") else emit)(event, **fields)

    def _leave(self, code: int) -> NoReturn:
        """Exit; in a gang, skip the interpreter's shutdown, where threads may abort."""
        sys.stdout.flush()
        sys.stderr.flush()
        if joined():
            os._exit(code)
        raise SystemExit(code)

    def _serve_metrics(self) -> None:
        """Serve the values under the names that the platform's alerts and dashboards read."""
        name = self.directory.name.replace("\\", r"\\").replace('"', r"\"")
        values = self._values

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lines = [f'training_info{{run="{name}"}} 1']
                lines += [f"training_{key} {float(value)}" for key, value in dict(values).items()]
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write("".join(f"{line}\n" for line in lines).encode())

            def log_message(self, *_: object) -> None:
                pass

        try:
            server = ThreadingHTTPServer(("", self._port), Handler)
        except OSError as error:
            raise FatalError(
                f"metrics port {self._port} is not available: {error.strerror}"
            ) from None
        Thread(target=server.serve_forever, name="metrics", daemon=True).start()
