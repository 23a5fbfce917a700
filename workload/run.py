"""Library for running any training program on the platform. Its only dependency is torch."""

import faulthandler
import json
import math
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn, Self, SupportsFloat, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.collective_utils import all_gather, broadcast

from workload import exit_codes, files
from workload.exit_codes import FatalError as FatalError
from workload.report import conclude, emit, fail
from workload.tracking import track

T = TypeVar("T")
Action = Callable[[Path], object]


def long_timeout_group() -> dist.ProcessGroup:
    """Return a group for long waits. If a process dies, its peers still fail immediately."""
    return cast(dist.ProcessGroup, dist.new_group(backend="gloo", timeout=timedelta(days=1)))


def on_rank0(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run an action on rank 0; every process returns the result or raises the error."""
    result = all_or_none(action if _rank() == 0 else lambda: None, group)
    return cast(T, broadcast(result, pg=group or dist.group.WORLD))


def all_or_none(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Run an action that may fail in one process; if it fails, every process raises the error."""
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:
        failure = _picklable(error) if dist.is_initialized() else error
    for problem in all_gather(failure, pg=group or dist.group.WORLD):
        if problem is not None:
            raise problem
    return result


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _picklable(error: Exception) -> Exception:
    """Return an error that every process can raise, with the rank and the traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - data from this process
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"Raised on rank {_rank()}:\n{trace}")
    return error


class Vote:
    """Vote to stop all processes after the same step, without waiting for the network."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group, self._requested, self._flag = group, False, torch.zeros(1)
        self._pending: dist.Work | None = None

    def listen(self) -> dict[int, Any]:
        """Make SIGTERM and the first Ctrl-C a vote to stop; return the previous handlers."""
        return {each: signal.signal(each, self._stop) for each in (signal.SIGTERM, signal.SIGINT)}

    def _stop(self, number: int, _: object) -> None:
        self._requested = True
        # Under torchrun, a Ctrl-C arrives twice: from the terminal and from torchrun.
        if number == signal.SIGINT and not dist.is_torchelastic_launched():
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def cast(self, stop: bool = False) -> bool:
        """Cast this step's vote; return True if a process voted to stop in the previous step.

        Without a process group, the vote takes effect immediately.
        """
        if not dist.is_initialized():
            return stop or self._requested
        if self.result():
            return True
        self._flag.fill_(stop or self._requested)
        self._pending = dist.all_reduce(self._flag, dist.ReduceOp.MAX, self._group, async_op=True)
        return False

    def result(self) -> bool:
        """Wait for the last vote; return True if a process voted to stop."""
        pending, self._pending = self._pending, None
        return pending is not None and pending.wait() and bool(self._flag)


class Watchdog:
    """Watchdog that requires a call to `beat` at least every `timeout` seconds; 0 disables it.

    If a call is late, the stacks of all threads are written to standard error, and the process
    exits with HUNG (or, if a library holds the GIL, with FAILED after up to twice the timeout).
    """

    def __init__(self, timeout: float) -> None:
        self._timeout, self._last_beat = timeout, time.monotonic()
        self._stopped = threading.Event()

    def beat(self) -> float:
        """Record progress; return the seconds since the previous call."""
        before, self._last_beat = self._last_beat, time.monotonic()
        return self._last_beat - before

    def __enter__(self) -> Self:
        self.beat()
        if self._timeout:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        stderr = 2  # sys.stderr may have been replaced.
        while not self._stopped.wait(min(self._timeout / 4, 1)):
            # This timer runs outside Python, so it also fires if this loop is blocked.
            faulthandler.dump_traceback_later(self._timeout, exit=True, file=stderr)
            if time.monotonic() - self._last_beat > self._timeout:
                faulthandler.dump_traceback(stderr, all_threads=True)
                stacks = "the stacks of all threads are on standard error"
                message = f"no step for {self._timeout:g} seconds (hang_timeout): {stacks}"
                exit_codes.exit_process(fail(message, exit_codes.HUNG))
        faulthandler.cancel_dump_traceback_later()


class Run:
    """Context manager for a run of `steps` steps; enter it after the process group is initialized.

    All ranks must call all methods in the same order, and share `directory` (default: $RUN_DIR or
    `run`). If `log_every` is 0, only the last step is logged. `newest` is the checkpoint to resume
    from, or None in a new run.
    """

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
        self._watchdog, self._group = Watchdog(hang_timeout), dist.group.WORLD
        self._rank, self._size, self._diverged = 0, 1, False
        self._handlers: dict[int, Any] = {}
        self.newest: Path | None = None
        self._values: dict[str, Any] = {"step": 0, "step_seconds_count": 0, "step_seconds_sum": 0.0}

    def __enter__(self) -> Self:
        self._watchdog.__enter__()
        try:
            if self._steps < 1 or self._keep < 1:
                raise FatalError(
                    f"steps {self._steps} and keep {self._keep} must both be at least 1"
                )
            if dist.is_initialized():
                self._rank, self._size = dist.get_rank(), dist.get_world_size()
                self._group = long_timeout_group()
            self._vote = Vote(self._group)
            if self._port and dist.get_node_local_rank(0) == 0:
                self._serve_metrics()
            if on_rank0(lambda: files.exists(self._export / "manifest.json"), self._group):
                self._emit("finished", export=str(self._export), already=True)
                exit_codes.exit_process(exit_codes.DONE, dist.is_initialized())
            on_rank0(lambda: track(self.directory), self._group)
            found = on_rank0(lambda: files.recover(self._checkpoints), self._group)
            self.newest = next(iter(found), None)
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        # Handle signals only from here on: earlier, there is nothing to save, and a process that
        # handles SIGTERM would continue to wait for a lost peer.
        self._handlers = self._vote.listen()
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._watchdog.__exit__()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if isinstance(error, Exception):
            exit_codes.exit_process(fail(error, rank=self._rank), dist.is_initialized())

    def resume(self, load: Action = lambda _: None) -> int:
        """Call `load(directory)` with the newest checkpoint; return its step, or 0 in a new run."""
        all_or_none(lambda: self.newest and load(self.newest), self._group)
        self.resumed(files.step_of(self.newest) if self.newest else 0)
        return int(self._values["step"])

    def resumed(self, step: int) -> None:
        """Report the step from which the framework has resumed, or 0 in a new run."""
        self._values |= {"step": step, "checkpoint_step": step}
        fields = {"run_dir": str(self.directory), "processes": self._size}
        self._emit("resume" if step else "start", **self._progress(step), **fields)

    def step(self, step: int, loss: SupportsFloat, save: Action, *, due: bool = False) -> None:
        """Report a step; if a save is `due` or the run stops, call `save(directory)`.

        `due` must be the same on all ranks.
        """
        self.report(step, loss)
        if (stop := self.should_stop()) or due:
            self.save(step, save)
        if stop:
            self.interrupt(step)

    def report(self, step: int, loss: SupportsFloat | None = None) -> None:
        """Report a step and its loss; the loss is copied from a GPU only when it is logged."""
        if self._diverged:
            return
        self._values["step_seconds_count"] += step != self._values["step"]
        self._values["step_seconds_sum"] += self._watchdog.beat()
        self._values["step"] = step
        if loss is None:
            return
        # Detach the loss, so that the graph of a step is freed before the next step.
        self._values["loss"] = loss.detach() if isinstance(loss, torch.Tensor) else loss
        logged = self._log_every and step % self._log_every == 0
        if self._rank == 0 and (logged or step == self._steps):
            value = float(self._values["loss"])
            self._diverged = not math.isfinite(value)
            if not self._diverged:
                emit("step", loss=value, **self._progress(step))

    def should_stop(self) -> bool:
        """Return whether a process has received SIGTERM or logged a loss that is not finite.

        Without a process group, this includes the current step; otherwise, only previous steps
        count.
        """
        return self._vote.cast(self._diverged)

    def save(self, step: int, write: Action) -> None:
        """Save a checkpoint: each rank writes its files with `write(directory)`."""
        self._write(files.checkpoint_of(self._checkpoints, step), write)
        on_rank0(lambda: files.rotate(self._checkpoints, self._keep), self._group)
        self.saved(step)

    def saved(self, step: int) -> None:
        """Report a checkpoint that the framework itself has saved."""
        self._values["checkpoint_step"] = step
        self._emit("checkpoint", step=step)

    def interrupt(self, step: int) -> NoReturn:
        """Exit with INTERRUPTED (75). The state must have been saved."""
        self._emit("interrupted", step=step)
        exit_codes.exit_process(exit_codes.INTERRUPTED, dist.is_initialized())

    def finish(self, write: Action, metrics: Mapping[str, SupportsFloat], **manifest: Any) -> None:
        """Export the model: rank 0 writes the model with `write(directory)`, then the manifest."""
        results = {name: float(value) for name, value in metrics.items()}
        if reserved := results.keys() & {"event", "export", "sha256", "already"}:
            raise FatalError(f"metric name {min(reserved)} is reserved: rename the metric")

        def export(path: Path) -> str:
            if bad := [name for name, value in results.items() if not math.isfinite(value)]:
                raise FatalError(f"metric {bad[0]} is {results[bad[0]]}: metrics must be finite")
            write(path)
            listed = {k: v for k, v in files.describe_all(path).items() if k != "manifest.json"}
            weights = listed.get("model.safetensors", {})
            content = {"metrics": results, "run": self.directory.name, **manifest}
            content |= {"files": [*listed.values()], "torch_version": torch.__version__}
            content |= {"weights": weights} if weights else {}
            (path / "manifest.json").write_text(json.dumps(content, indent=2))
            return str(weights.get("sha256", ""))

        self._vote.result()
        digest = self._write(self._export, export if self._rank == 0 else lambda _: None)
        self._emit("finished", **results, export=str(self._export), sha256=digest)

    def _write(self, target: Path, write: Action) -> Any:
        """Call `write` on all ranks; rename the directory to `target` once it is on disk."""
        all_or_none(self._check_loss, self._group)
        directory = on_rank0(lambda: files.create_unfinished(target), self._group)
        result = all_or_none(lambda: write(directory), self._group)
        first_of_node = dist.get_node_local_rank(0) == 0
        all_or_none(lambda: files.sync_files(directory) if first_of_node else None, self._group)
        on_rank0(lambda: files.publish_folder(directory), self._group)
        return result

    def _progress(self, step: int) -> dict[str, object]:
        return {"step": step, "done_epochs": round(step / self._steps, 6), "epochs": 1}

    def _check_loss(self) -> None:
        loss = float(self._values.get("loss", 0))
        if not math.isfinite(loss):
            raise FatalError(
                f"the loss became {loss} at or before step {self._values['step']}: lower the "
                "learning rate, or check the data; nothing has been saved since the last checkpoint"
            )

    def _emit(self, event: str, /, **fields: object) -> None:
        self._watchdog.beat()
        if self._rank == 0:
            (conclude if event in ("finished", "interrupted") else emit)(event, **fields)

    def _serve_metrics(self) -> None:
        """Serve Prometheus metrics with the names that the platform's alerts and dashboards use."""
        run, values = json.dumps(self.directory.name, ensure_ascii=False), self._values

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lines = [f"training_{key} {float(value)}" for key, value in [*values.items()]]
                self.send_response_only(200)  # send_response would log the request.
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.end_headers()
                self.wfile.write("\n".join([f"training_info{{run={run}}} 1", *lines, ""]).encode())

        try:
            server = ThreadingHTTPServer(("", self._port), Handler)
        except (OSError, OverflowError) as error:
            raise FatalError(f"metrics_port {self._port}: {error}; use another port") from None
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
