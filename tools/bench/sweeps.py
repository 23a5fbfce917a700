"""GPU-hours that sweeps need to reach the best accuracy of a random search: `make bench-sweeps`.

For each seed, a random search of 24 trials sets the target accuracy. The other searches, among them
a second random search that draws different values, then run until one of their trials reaches the
target. Only these other searches can be compared fairly, because the first search reaches its own
best accuracy by definition.

The sweep controller and the training programs are real: a paused trial receives SIGTERM, and a
promoted trial resumes from its checkpoint. The cluster and its clock are simulated: epochs, pod
starts and pod terminations take the same time in all searches. All searches are run with two
different epoch durations.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from lightkube import Client

from infra.pods import GpuNodes
from infra.settings.training.sweep import SweepSettings
from infra.sweep import Sweep
from infra.training_run import TrainingJobArgs
from sweeps.controller import Controller
from tools.bench.outcome import Goal, conclude, print_line, spread
from workload import exit_codes
from workload.progress import PROGRESS_FILE, Epoch, parse

SEEDS: Final = range(1, 6)
TRIALS: Final = 24
"""Number of trials of the random search with which the other searches are compared."""

PARALLEL: Final = 4
MAX_TRIALS: Final = 3 * TRIALS
EPOCHS: Final = 27
EPOCH_MINUTES: Final = (5, 1)
"""Durations (min) of an epoch. With shorter epochs, pods spend a larger share of the time starting
and terminating."""
START_SECONDS: Final = 30.0
END_SECONDS: Final = 10.0
INTERVAL: Final = 10.0
"""Time (s) between two decisions of the controller (the controller's default)."""

SPACE: Final[dict[str, Any]] = {
    "learning_rate": {"min": 1e-4, "max": 1.0, "log": True},
    "batch_size": {"min": 32, "max": 256, "log": True},
    "optimizer": {"choices": ["adamw", "sgd"]},
    "weight_decay": {"min": 1e-4, "max": 1.0, "log": True},
}
EARLY_STOPPING: Final = {"minimum": 1, "factor": 3}
FIRST: Final = "random, first"
SECOND: Final = "random, second"
OURS: Final = "tpe, early stopping"
SEARCHES: Final[dict[str, dict[str, Any]]] = {
    FIRST: {"sampler": "random"},
    SECOND: {"sampler": "random"},
    "random, early stopping": {"sampler": "random", "early_stopping": EARLY_STOPPING},
    OURS: {"sampler": "tpe", "early_stopping": EARLY_STOPPING},
}
MAX_RATIO: Final = 0.5
_POLL_SECONDS: Final = 0.01
_processes = multiprocessing.get_context("forkserver")


def main() -> None:
    """Run all searches with each seed, and print the ratios."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    _processes.set_forkserver_preload(["training.train"])
    found: list[dict[str, Any]] = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as scratch, programs(Path(scratch) / "runs") as started:
            for minutes in EPOCH_MINUTES:
                directory = Path(scratch) / f"{minutes}"
                found += _searches(seed, minutes, directory, started)
    _conclude(found)


def _searches(
    seed: int, minutes: int, directory: Path, started: "Programs"
) -> Iterator[dict[str, Any]]:
    """Yield the results of all searches. The first search sets the target of the other searches."""
    target = 0.0
    for name, changes in SEARCHES.items():
        searched = Search(sweep(seed, name, changes), directory / name, started, 60.0 * minutes)
        reached = searched.run_until(target if name != FIRST else None)
        target = target or reached.accuracy
        missed = f" (below the target {target:.4f})" if reached.missed else ""
        print_line(
            f"seed {seed}, epochs of {minutes} min: {name}: accuracy {reached.accuracy:.4f}"
            f"{missed} after {reached.hours:.2f} GPU-hours, {reached.trials} trials"
        )
        yield {"seed": seed, "epoch_minutes": minutes, "search": name, **vars(reached)}


def _conclude(found: list[dict[str, Any]]) -> None:
    goals = []
    ratios: dict[str, dict[str, float]] = {}
    for minutes, name in product(EPOCH_MINUTES, SEARCHES):
        first, second, rows = (
            [row for row in found if (row["epoch_minutes"], row["search"]) == (minutes, each)]
            for each in (FIRST, SECOND, name)
        )
        title = f"epochs of {minutes} min: {name}"
        if name not in (FIRST, SECOND):
            to_all = _ratio(rows, [row["total_hours"] for row in first])
            hours_to_best = [_mean_hours(row["total_hours"], row["best_trials"]) for row in first]
            to_best = _ratio(rows, hours_to_best)
            missed = [sum(row["missed"] for row in each) for each in (rows, second)]
            to_second = _ratio(rows, [row["hours"] for row in second], missed[1])
            print_line(
                f"{title}: expected GPU-hours, relative to a second random search: "
                f"{to_second['expected']:.2f}; relative to the first random search with all "
                f"{TRIALS} trials: {to_all['expected']:.2f}; relative to the first random search "
                f"until its best trial (mean over all orders): {to_best['expected']:.2f}. With at "
                f"most {MAX_TRIALS} trials, {missed[0]} of {len(rows)} searches and {missed[1]} of "
                "the second random searches did not reach the target accuracy"
            )
            ratios |= {
                f"{title}, relative to a second random search": to_second,
                f"{title}, relative to all trials": to_all,
                f"{title}, relative to the first search until its best trial": to_best,
            }
            if name == OURS:
                goals += [
                    Goal(
                        f"{title}, relative to a second random search",
                        to_second["expected"],
                        MAX_RATIO,
                        True,
                    ),
                    Goal(f"{title}, relative to all trials", to_all["expected"], MAX_RATIO, True),
                ]
    conclude("sweeps", {"searches": found, "ratios": ratios}, goals)


def _ratio(
    rows: list[dict[str, Any]], others: list[float], others_missed: int = 0
) -> dict[str, float]:
    """Return the ratio of the expected GPU-hours of `rows` to those of `others`, and its spread.

    Some searches may not reach the target accuracy. The expected GPU-hours are the sum over all
    searches, divided by the number of searches that reached the target (expected running time:
    Hansen et al., COCO, 2021).
    """
    hours = [float(row["hours"]) for row in rows]
    reached = len(rows) - sum(row["missed"] for row in rows)
    others_reached = len(others) - others_missed
    by_seed = [mine / other for mine, other in zip(hours, others, strict=True)]
    expected = sum(hours) / sum(others) * others_reached / reached if reached else math.inf
    return {"expected": expected, **spread(by_seed)}


def _mean_hours(total_hours: float, best_trials: int) -> float:
    """Return the mean GPU-hours until the best trial of a random search, over all orders of trials.

    All trials have the same length and the same distribution, so each order is equally likely. The
    best value is shared by `best_trials` trials, and `PARALLEL` trials run at the same time.
    """
    orders = math.comb(TRIALS, best_trials)
    return sum(
        math.comb(TRIALS - position, best_trials - 1)
        / orders
        * math.ceil(position / PARALLEL)
        * PARALLEL
        * total_hours
        / TRIALS
        for position in range(1, TRIALS - best_trials + 2)
    )


def sweep(seed: int, name: str, changes: dict[str, Any]) -> Sweep:
    """Return a sweep whose trials use one GPU each. The sweep and its trials have the same seed."""
    trials = TRIALS if name == FIRST else MAX_TRIALS
    hyperparameters = {"model": "digits-net", "dataset": "digits", "epochs": EPOCHS, "seed": seed}
    settings = SweepSettings.model_validate(
        {
            "job": {
                "queue": "research",
                "priority_class": "sweeps",
                "gpus_per_node": 1,
                # The values that a sweep draws depend on its job. A different job makes the second
                # search draw different values.
                "cpu": 2 if name == SECOND else 1,
                "memory": "1Gi",
                "shm": "64Mi",
                "retries": 5,
                "hyperparameters": hyperparameters,
            },
            "space": SPACE,
            "objective": {"metric": "accuracy", "goal": "maximize"},
            "parallel": PARALLEL,
            "trials": trials,
            "budget": {"gpu_hours": 1000},
            **changes,
        }
    )
    args = TrainingJobArgs(
        key="digits",
        job=settings.job,
        namespace="ml",
        image="training",
        image_identity="training",
        gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
        claims={"checkpoints": "checkpoints"},
    )
    return Sweep(settings=settings, args=args, labels={}, annotations={})


@dataclass
class Programs:
    """Training programs, one per run. Searches with the same seed reuse each other's runs."""

    directory: Path
    processes: dict[str, ForkServerProcess] = field(default_factory=dict)

    def start(self, run: str, flags: list[str], epochs: int) -> None:
        """Start or resume a run unless it has already trained `epochs` epochs."""
        if run not in self.processes and len(self.lines(run)) < epochs:
            process = _processes.Process(target=_train, args=(flags, str(self.directory / run)))
            process.start()
            self.processes[run] = process

    def lines(self, run: str) -> dict[int, str]:
        """Map each completed epoch of a run to its progress line."""
        found: dict[int, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in (self.directory / run / PROGRESS_FILE).read_text().splitlines():
                event = parse(line)
                if isinstance(event, Epoch) and event.epoch == int(event.epoch):
                    found[int(event.epoch)] = line
        return found

    def wait(self, run: str, epochs: int) -> dict[int, str]:
        """Wait until a run has trained `epochs` epochs, and return its progress lines.

        After the run's last epoch, also wait for its export.
        """
        while len(lines := self.lines(run)) < epochs:
            self._check(run)
            time.sleep(_POLL_SECONDS)
        if epochs == EPOCHS and run in self.processes:
            self.processes.pop(run).join()
        return lines

    def stop(self, run: str) -> None:
        """Send SIGTERM to a run, which saves a checkpoint, and wait until it exits."""
        if run in self.processes:
            process = self.processes.pop(run)
            process.terminate()
            process.join()
            # A process that has just started does not handle SIGTERM yet, but loses no progress.
            expected = (exit_codes.DONE, exit_codes.INTERRUPTED, -signal.SIGTERM)
            if process.exitcode not in expected:
                sys.exit(f"{run} exited with code {process.exitcode}")

    def _check(self, run: str) -> None:
        process = self.processes[run]
        if process.exitcode and len(self.lines(run)) < EPOCHS:
            output = (self.directory / f"{run}.log").read_text()
            sys.exit(f"{run} exited with code {process.exitcode}:\n{output[-2000:]}")


@contextlib.contextmanager
def programs(directory: Path) -> Iterator[Programs]:
    """Yield the training programs of a seed, and stop them at the end of the block."""
    directory.mkdir()
    started = Programs(directory)
    try:
        yield started
    finally:
        for run in list(started.processes):
            started.stop(run)


def _train(flags: list[str], directory: str) -> None:
    """Run the training program in a process that has already imported it."""
    from training.__main__ import run
    from training.command_line import read_config

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops this process
    with Path(f"{directory}.log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os._exit(run(read_config([*flags, f"--run-dir={directory}"], os.environ)))


@dataclass
class Gang:
    """A trial in the simulated cluster, and the times (s) until its pod starts and ends."""

    job: dict[str, Any]
    starts: float = START_SECONDS
    ends: float | None = None
    trained: float = 0.0

    def set_phase(self, phase: str) -> None:
        """Set the phase of the job."""
        self.job["status"] = {"state": {"phase": phase}}

    @property
    def phase(self) -> str:
        """Phase of the job."""
        return str(self.job["status"]["state"]["phase"])


@dataclass
class BestResult:
    """Best accuracy of finished trials, and the resources that the search used to reach it."""

    accuracy: float = 0.0
    hours: float = 0.0
    trials: int = 0
    best_trials: int = 0
    """Number of trials with this accuracy in the complete search."""
    total_hours: float = 0.0
    """GPU-hours of the complete search."""
    missed: bool = False
    """True if the search did not reach the target accuracy; `hours` then equals `total_hours`."""


@dataclass
class Search:
    """A sweep in a simulated cluster with enough GPUs for all trials.

    The controller uses this object as its API client.
    """

    sweep: Sweep
    claim: Path
    programs: Programs
    epoch_seconds: float
    now: float = 0.0
    gangs: dict[str, Gang] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def run_until(self, accuracy: float | None) -> BestResult:
        """Search until an accuracy is reached or the sweep ends, and return the best result."""
        api: Any = self
        client: Client = api
        controller = Controller(self.sweep, self.claim, client, INTERVAL, lambda: self.now)
        reached = BestResult()
        while True:
            while controller.step():
                pass
            finished = [row for row in self.summary["trials"] if row["phase"] == "succeeded"]
            best = max((row["value"] for row in finished), default=0.0)
            over = self.summary["state"] != "running"
            if best > reached.accuracy:
                reached = BestResult(best, self.summary["gpu_hours"], len(self.gangs))
            if over or (accuracy is not None and best >= accuracy):
                break
            self._advance()
        controller.close()
        reached.total_hours = self.summary["gpu_hours"]
        reached.best_trials = sum(row["value"] == reached.accuracy for row in finished)
        if accuracy is not None and reached.accuracy < accuracy:
            reached.hours, reached.trials = reached.total_hours, len(self.gangs)
            reached.missed = True
        return reached

    def list(self, resource: Any, **_: Any) -> list[Any]:
        """Return the jobs."""
        return [resource.from_dict(gang.job) for gang in self.gangs.values()]

    def create(self, created: Any, **_: Any) -> None:
        """Create a Volcano Job, or execute a Volcano Command."""
        document = created.to_dict()
        if document["kind"] == "Command":
            gang = self.gangs[document["target"]["name"]]
            if document["action"] == "AbortJob":
                gang.set_phase("Aborting")
                gang.ends = END_SECONDS
            else:
                gang.set_phase("Running")
                gang.starts = START_SECONDS
            return
        name = document["metadata"]["name"]
        created_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.now))
        metadata = {**document["metadata"], "uid": name, "creationTimestamp": created_at}
        self.gangs[name] = Gang({**document, "metadata": metadata})
        self.gangs[name].set_phase("Running")

    def patch(self, _resource: Any, _name: str, patched: dict[str, Any], **_: Any) -> None:
        """Store the summary of the sweep."""
        (text,) = patched["metadata"]["annotations"].values()
        self.summary = json.loads(text)

    def _advance(self) -> None:
        self.now += INTERVAL
        for name, gang in self.gangs.items():
            if gang.phase == "Running" and gang.starts <= 0:
                epochs = int(gang.trained // self.epoch_seconds) + 1
                self.programs.start(name, _flags(gang.job), epochs)
        for name, gang in self.gangs.items():
            if gang.phase == "Aborting" and gang.ends is not None:
                gang.ends -= INTERVAL
                if gang.ends <= 0:
                    self.programs.stop(name)
                    gang.set_phase("Aborted")
            elif gang.phase == "Running":
                self._train(name, gang)

    def _train(self, name: str, gang: Gang) -> None:
        if gang.starts > 0:
            gang.starts -= INTERVAL
            return
        gang.trained += INTERVAL
        epochs, rest = divmod(gang.trained, self.epoch_seconds)
        if rest:
            return
        lines = self.programs.wait(name, int(epochs))
        directory = self.claim / name
        directory.mkdir(exist_ok=True)
        with (directory / PROGRESS_FILE).open("a") as file:
            file.write(lines[int(epochs)] + "\n")
        if epochs >= EPOCHS:
            (directory / "export").symlink_to(self.programs.directory / name / "export")
            gang.set_phase("Completed")


def _flags(job: dict[str, Any]) -> list[str]:
    """Return a job's flags for the training program, except the directory and the metrics port."""
    (task, *_) = job["spec"]["tasks"]
    command = task["template"]["spec"]["containers"][0]["command"]
    first = max(index for index, word in enumerate(command) if word == "training")
    flags: list[str] = command[first + 1 :]
    excluded = ("--run-dir=", "--metrics-port=")
    return [flag for flag in flags if not flag.startswith(excluded)]


if __name__ == "__main__":
    main()
