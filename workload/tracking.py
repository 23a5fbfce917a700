"""Copies of a run's progress lines in MLflow or W&B, written by one thread per service.

The threads run on rank 0. A slow or unavailable service never delays a step: lines wait in a queue
of limited size, and lines that do not fit are dropped and counted. Each package is imported only if
a run uses it. Servers, projects and credentials are configured by the packages' own environment
variables, such as MLFLOW_TRACKING_URI and WANDB_PROJECT.
"""

import contextlib
import importlib
import json
import os
import queue
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from workload import report
from workload.exit_codes import FatalError
from workload.files import write_atomically

RUNS_FILE: Final = "tracking.json"
"""File in a run's directory with the run's ID in each service, read when the run resumes."""

QUEUE_CAPACITY: Final = 10_000
"""Maximum number of queued lines."""

SECONDS_VARIABLE: Final = "RUN_TRACK_SECONDS"
"""Environment variable with the maximum time (s) to wait for the last lines (default: 10)."""

_MAX_SECONDS: Final = 86_400

_BATCH: Final = 100
_PAUSES: Final = (1.0, 60.0)
"""Initial and maximum time (s) before a failed request is retried."""

_NOT_METRICS: Final = {"event", "step", "epochs", "done_epochs", "already"}
"""Fields that are not metrics."""

_storing: Final = threading.Lock()
"""Lock for changes to RUNS_FILE, which contains the IDs of all services."""

_FINAL_STATUSES: Final = {"finished": "FINISHED", "interrupted": "KILLED", "error": "FAILED"}
"""Maps the last event of a run to its status in MLflow."""


class RejectedError(Exception):
    """The service rejected the values; a retry would fail in the same way."""


@dataclass(frozen=True)
class Line:
    """A progress line, and the time at which it was written."""

    content: Mapping[str, object]
    time: float = field(default_factory=time.time)

    @property
    def event(self) -> str:
        """Name of the event."""
        return str(self.content["event"])

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the run; only the first line contains them."""
        if self.event not in ("start", "resume"):
            return {}
        excluded = {"event", "step", "done_epochs"}
        return {name: str(each) for name, each in self.content.items() if name not in excluded}

    @property
    def metrics(self) -> dict[str, float]:
        """Values of a progress line or of the result, under the keys `event/name`."""
        if self.event not in ("step", "epoch", "evaluation", "finished"):
            return {}
        custom = self.content.get("metrics")
        values = {**self.content, **(custom if isinstance(custom, dict) else {})}
        return {
            f"{self.event}/{name}": float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and name not in _NOT_METRICS | {self.event}
        }


class Service(ABC):
    """A tracking service. Only one thread calls `write`, which may raise any exception."""

    name: str

    def __init__(self, directory: Path) -> None:
        self._directory, self._step = directory, 0

    @classmethod
    def check(cls) -> None:
        """Raise FatalError if the package or a required variable is missing.

        The package is imported here, before the first step, because importing it later would slow
        training down.
        """
        try:
            importlib.import_module(cls.name)
        except ImportError as error:
            raise FatalError(
                f"track contains {cls.name}, but the package cannot be imported ({error}): install "
                f"it in the image, or leave {cls.name} out"
            ) from None

    @abstractmethod
    def write(self, lines: list[Line]) -> None:
        """Write lines in order. Raise RejectedError to drop them; other errors cause a retry."""

    def _step_of(self, line: Line) -> int:
        """Return the step of a line, or of the previous line if the line has no step."""
        step = line.content.get("step")
        self._step = step if isinstance(step, int) else self._step
        return self._step

    def _stored_ids(self) -> dict[str, str]:
        # Other OSErrors must cause a retry, because a new run would replace the stored ID.
        try:
            found: dict[str, str] = json.loads((self._directory / RUNS_FILE).read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        return found

    def _store_id(self, run: str) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with _storing:
            content = json.dumps(self._stored_ids() | {self.name: run}).encode()
            write_atomically(self._directory / RUNS_FILE, content)


class Mlflow(Service):
    """MLflow: a server or a database at MLFLOW_TRACKING_URI."""

    name = "mlflow"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        # With MLflow's defaults, requests would block for minutes, even when the process exits.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        # Standard output must contain nothing but JSON lines.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        self._client: Any = None
        self._run = ""
        self._is_stored = True

    @classmethod
    def check(cls) -> None:
        """Raise FatalError if the package or the address is missing."""
        super().check()
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            raise FatalError(
                "track contains mlflow, but MLFLOW_TRACKING_URI is not set: set it in the "
                "environment of the job, for example to http://mlflow.mlflow:5000"
            )

    def write(self, lines: list[Line]) -> None:
        """Write lines to the run; the first call creates or resumes the run."""
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException

        try:
            parameters = {name: each for line in lines for name, each in line.parameters.items()}
            known = self._open(parameters)
            if not self._is_stored:
                # The disk may be full. The next attempt stores the ID of the same run.
                self._store_id(self._run)
                self._is_stored = True
            metrics = [
                Metric(name, value, int(line.time * 1000), self._step_of(line))
                for line in lines
                for name, value in line.metrics.items()
            ]
            # MLflow cannot change parameters, so a resumed run keeps its existing parameters.
            new = [Param(name, each) for name, each in parameters.items() if name not in known]
            for part in _parts(metrics, 1000):
                self._client.log_batch(self._run, metrics=part)
            for part in _parts(new, 100):
                self._client.log_batch(self._run, params=part)
            for line in lines:
                self._conclude(line)
        except MlflowException as error:
            if error.error_code in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise RejectedError(str(error)) from error
            raise

    def _open(self, parameters: Mapping[str, str]) -> Mapping[str, str]:
        """Create or resume the run; return the parameters that it already has."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        if self._client is None:
            self._client = MlflowClient()
        self._run = self._run or self._stored_ids().get(self.name, "")
        if self._run and not parameters:
            return {}
        if self._run:
            try:
                found = self._client.get_run(self._run)
                self._client.update_run(self._run, status="RUNNING")
                known: Mapping[str, str] = found.data.params
                return known
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(number, run_name=self._directory.name)
        self._run, self._is_stored = run.info.run_id, False
        return {}

    def _conclude(self, line: Line) -> None:
        """For the last line, set the run's status and add the result or the error as tags."""
        if line.event not in _FINAL_STATUSES:
            return
        for name in ("export", "sha256", "message"):
            if value := line.content.get(name):
                self._client.set_tag(self._run, name, str(value))
        self._client.set_terminated(self._run, _FINAL_STATUSES[line.event])


class Wandb(Service):
    """W&B, in offline mode unless WANDB_MODE is set. Upload offline runs with `wandb sync`."""

    name = "wandb"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._run: Any = None

    def write(self, lines: list[Line]) -> None:
        """Write lines to the run; the first call creates or resumes the run."""
        for line in lines:
            if self._run is None:
                self._run = self._open(line.parameters)
            if values := line.metrics:
                self._run.log({"training_step": self._step_of(line), **values})
            if line.event in _FINAL_STATUSES:
                names = ("export", "sha256", "message")
                found = {name: line.content[name] for name in names if line.content.get(name)}
                self._run.summary.update(found)
                self._run.finish(exit_code=int(line.event == "error"))
                self._run = None

    def _open(self, parameters: Mapping[str, str]) -> Any:
        import wandb

        identifier = self._stored_ids().get(self.name) or uuid.uuid4().hex[:12]
        self._store_id(identifier)
        run = wandb.init(
            id=identifier,
            resume="allow",
            dir=self._directory,
            name=self._directory.name,
            config=dict(parameters),
            mode=os.environ.get("WANDB_MODE", "offline"),
            # Otherwise, W&B would copy standard output, which contains the progress lines.
            settings=wandb.Settings(console="off", silent=True, disable_git=True),
        )
        run.define_metric("*", step_metric="training_step")
        return run


SERVICES: Final = {each.name: each for each in (Mlflow, Wandb)}


class Tracker:
    """Queue and thread that pass the progress lines to one service.

    Raise FatalError if $RUN_TRACK_SECONDS is invalid.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._reason, self._close_timeout = service, "", _close_timeout()
        self._lines: queue.Queue[Line] = queue.Queue(QUEUE_CAPACITY)
        self._unwritten: list[Line] = []
        self._closing = threading.Event()
        self.dropped = 0
        name = f"tracking-{service.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def receive(self, content: Mapping[str, object]) -> None:
        """Queue a progress line without waiting."""
        try:
            self._lines.put_nowait(Line(content))
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Wait for the last lines, with a timeout, and report how many lines were not written."""
        self._closing.set()
        self._thread.join(self._close_timeout)
        missing = self.dropped + self._lines.qsize() + len(self._unwritten)
        if missing:
            timeout = f"it took longer than {self._close_timeout:g} seconds ({SECONDS_VARIABLE})"
            reason = self._reason or timeout
            message = f"{self._service.name} did not receive {missing} progress lines: {reason}"
            report.emit("warning", message=message)

    def _work(self) -> None:
        pause, maximum = _PAUSES
        while True:
            last = self._closing.is_set()
            self._unwritten = self._unwritten or self._next()
            if last and not self._unwritten:
                return
            try:
                if self._unwritten:
                    self._service.write(self._unwritten)
                self._unwritten, pause = [], _PAUSES[0]
            except RejectedError as error:
                self.dropped += len(self._unwritten)
                self._unwritten, self._reason = [], str(error)
            except Exception as error:
                self._reason = f"{type(error).__name__}: {error}"
                if last:
                    return
                self._closing.wait(pause)
                pause = min(2 * pause, maximum)

    def _next(self) -> list[Line]:
        """Return queued lines, after waiting at most a second for the first one."""
        found = []
        with contextlib.suppress(queue.Empty):
            found.append(self._lines.get(timeout=0.05 if self._closing.is_set() else 1.0))
            while len(found) < _BATCH:
                found.append(self._lines.get_nowait())
        return found


def track(directory: Path, names: Iterable[str] | None = None) -> None:
    """Copy this process's lines to the named services.

    Rank 0 must call this function before it writes the first line. By default, `names` comes from
    $RUN_TRACK. Raise FatalError if a service is unknown or cannot be configured.
    """
    names = os.environ.get("RUN_TRACK", "").split(",") if names is None else names
    chosen = [name.strip() for name in names if name.strip()]
    for name in chosen:
        if name not in SERVICES:
            raise FatalError(f"track contains {name!r}: use {' or '.join(SERVICES)}")
        SERVICES[name].check()
    for name in chosen:
        report.listeners.append(Tracker(SERVICES[name](directory)))


def _close_timeout() -> float:
    text = os.environ.get(SECONDS_VARIABLE, "10")
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) <= _MAX_SECONDS:
            return seconds
    raise FatalError(
        f"{SECONDS_VARIABLE} is {text!r}: use a number of seconds from 0 to {_MAX_SECONDS}"
    )


def _parts(values: list[Any], size: int) -> Iterable[list[Any]]:
    return (values[start : start + size] for start in range(0, len(values), size))
