"""Sweeps under real Volcano, with a sweep controller that is killed repeatedly.

Simulated nodes run no containers, so a thread stands in for the training programs: it writes
epoch lines and the manifest of the export to the claim, as a training run does.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from infra.pods import GpuNodes
from infra.settings.training.sweep import SweepControllerSettings, SweepSettings, template_name
from infra.sweep import (
    PLAN,
    Sweep,
    SweepControllerArgs,
    controller_manifests,
    parse_plan,
    plan,
    template,
    winner_path,
)
from infra.training_run import TrainingJobArgs, manifests, run_name
from kube.names import SWEEP_SUMMARY_ANNOTATION as SUMMARY
from sweeps.study import JOURNAL, LEDGER, Study
from tests.cluster.load import Background
from tests.cluster.platform import await_
from tests.cluster.scheduling import GPU, KEEP_RUNNING, NAMESPACE, Scheduling
from tests.infra.examples import TRAINING_IMAGE
from workload import exit_codes
from workload.manifest import Manifest, Weights, read_manifest, write_manifest
from workload.progress import PROGRESS_FILE

KILLS = 20
EPOCHS, GPUS, PARALLEL, TRIALS = 4, 8, 2, 9
EPOCH_SECONDS, INTERVAL, GRACE = 0.7, 0.2, 1
JOBS = "jobs.batch.volcano.sh"


def sweep_settings(key: str, job: dict[str, Any] | None = None, **changes: Any) -> Sweep:
    searched = {
        "queue": "vision",
        "priority_class": "batch",
        "gpus_per_node": GPUS,
        "cpu": 1,
        "memory": "1Gi",
        "shm": "64Mi",
        "retries": 5,
        "grace_seconds": GRACE,
        "annotations": {KEEP_RUNNING: "yes"},
        "hyperparameters": {"model": "digits-net", "dataset": "digits", "epochs": EPOCHS},
        **(job or {}),
    }
    settings = SweepSettings.model_validate(
        {
            "job": searched,
            "space": {"learning_rate": {"min": 1e-4, "max": 1e-1, "log": True}},
            "early_stopping": {"minimum": 1, "factor": 2},
            "parallel": PARALLEL,
            "trials": TRIALS,
            "budget": {"gpu_hours": 10},
            **changes,
        }
    )
    args = TrainingJobArgs(
        key=key,
        job=settings.job,
        namespace=NAMESPACE,
        image=TRAINING_IMAGE,
        image_identity=TRAINING_IMAGE,
        gpu_nodes=GpuNodes(resource=GPU),
        claims={"checkpoints": "checkpoints"},
    )
    return Sweep(settings=settings, args=args, labels={}, annotations={})


@dataclass
class Training(Background):
    """The training programs of all trials on a claim, and observations of them."""

    volcano: Scheduling
    sweep: Sweep
    claim: Path
    epochs: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    uids: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    running: set[str] = field(default_factory=set)
    max_gpus: int = 0
    errors: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def _work(self) -> None:
        before = time.monotonic()
        while not self._ending.is_set():
            now = time.monotonic()
            try:
                self._advance(now - before)
            except Exception as error:
                # The trial was paused between the two requests.
                if "NotFound" not in str(error):
                    self.errors.append(error)
            before = now
            time.sleep(0.1)

    def _advance(self, seconds: float) -> None:
        for job in self.volcano.all(JOBS):
            self.uids[job["metadata"]["name"]].add(job["metadata"]["uid"])
        held, self.running = 0, set()
        for pod in self.volcano.all("pods"):
            if not pod["spec"].get("nodeName") or pod["status"]["phase"] not in (
                "Pending",
                "Running",
            ):
                continue
            held += self.sweep.settings.gpus
            run = pod["metadata"]["labels"]["gpu-platform.dev/run"]
            if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                self.running.add(run)
                self._train(run, pod, seconds)
        self.max_gpus = max(self.max_gpus, held)
        self._stop()

    def _stop(self) -> None:
        """Stop the programs whose pods no longer exist."""

    def _train(self, run: str, pod: dict[str, Any], seconds: float) -> None:
        done, folder = self.epochs[run], self.claim / run
        # A controller that is killed or slow must not miss an epoch, or no trial might be paused.
        limit = int(done) + self._is_observed(folder)
        self.epochs[run] = min(done + seconds / EPOCH_SECONDS, limit, EPOCHS)
        for epoch in range(int(done) + 1, int(self.epochs[run]) + 1):
            folder.mkdir(exist_ok=True)
            loss = random.Random(f"{run}{epoch}").random()  # noqa: S311
            line = {"event": "epoch", "epoch": epoch, "epochs": EPOCHS, "loss": 1.0}
            with (folder / PROGRESS_FILE).open("a") as file:
                file.write(json.dumps({**line, "held_out_loss": loss}) + "\n")
        if self.epochs[run] >= EPOCHS:
            self._export(run)
            self.volcano.finish(pod)

    def _is_observed(self, folder: Path) -> bool:
        """Return whether the controller has completed a step since the last epoch of a run."""
        progress = folder / PROGRESS_FILE
        ledger = self.claim / template_name(self.sweep.args.key) / LEDGER
        return not progress.exists() or ledger.stat().st_mtime > progress.stat().st_mtime

    def _export(self, run: str) -> None:
        folder = self.claim / run / "export"
        folder.mkdir(exist_ok=True)
        (rate,) = (word for word in self._command(run) if word.startswith("--learning-rate="))
        manifest = Manifest(
            model="digits-net",
            input_shape=(1, 8, 8),
            classes=("0", "1"),
            metrics={"loss": 0.1, "accuracy": 0.9},
            weights=Weights(size=1, sha256="0" * 64),
            settings={"learning_rate": float(rate.partition("=")[2])},
            torch_version="2.15.0",
        )
        write_manifest(folder, manifest)

    def _command(self, run: str) -> list[str]:
        spec = self.volcano.job(run)["spec"]["tasks"][0]["template"]["spec"]
        return list(spec["containers"][0]["command"])


@dataclass
class Programs(Training):
    """The real training program of each trial, which gets SIGTERM when its pod is removed."""

    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    codes: list[int] = field(default_factory=list)

    def _train(self, run: str, pod: dict[str, Any], seconds: float) -> None:
        process = self.processes.get(run)
        if process is None:
            self.processes[run] = start_program(program(self._command(run), self.claim))
        elif process.poll() is not None:
            del self.processes[run]
            self.codes.append(process.returncode)
            if process.returncode == exit_codes.DONE:
                self.volcano.finish(pod)

    def _stop(self) -> None:
        for run in self.processes.keys() - self.running:
            process = self.processes.pop(run)
            process.terminate()
            self.codes.append(process.wait(500))


def program(command: list[str], claim: Path) -> list[str]:
    """Return the training command of a pod, with the checkpoint directory replaced."""
    (module,) = (place for place, word in enumerate(command) if word == "training")
    flags = [word.replace("=/checkpoints/", f"={claim}/") for word in command[module + 1 :]]
    return [sys.executable, "-m", "training", *flags]


def start_program(command: list[str]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)


@dataclass
class Controlled:
    """The controller of a sweep as a process, with the rights of its service account."""

    volcano: Scheduling
    sweep: Sweep
    folder: Path

    @property
    def key(self) -> str:
        return self.sweep.args.key

    @property
    def claim(self) -> Path:
        return self.folder / "claims" / "checkpoints"

    def install(self) -> None:
        self.claim.mkdir(parents=True)
        text = json.dumps(plan({self.key: self.sweep}))
        (self.folder / PLAN).write_text(text)
        objects = controller_manifests(
            SweepControllerArgs(
                controller=SweepControllerSettings(),
                sweeps={self.key: self.sweep},
                plan=text,
                namespace=NAMESPACE,
                image=TRAINING_IMAGE,
                claims={"checkpoints": "checkpoints"},
                gpu_nodes=self.sweep.args.gpu_nodes,
            )
        )
        self.volcano.kubectl("delete", "jobtemplates.flow.volcano.sh", "-n", NAMESPACE, "--all")
        run = [each for each in objects if each["kind"] != "Deployment"]
        self.volcano.apply(template(self.sweep), *run)
        token = self.volcano.kubectl("create", "token", "sweep-controller", "-n", NAMESPACE)
        view = self.volcano.kubectl("config", "view", "--raw", "--minify", "-o=json")
        kubeconfig = json.loads(view)
        kubeconfig["users"][0]["user"] = {"token": token.strip()}
        kubeconfig["contexts"][0]["context"]["namespace"] = NAMESPACE
        (self.folder / "kubeconfig").write_text(json.dumps(kubeconfig))

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        command = [
            *(sys.executable, "-m", "sweeps", f"--plan={self.folder / PLAN}"),
            *(f"--claims={self.folder / 'claims'}", f"--interval={INTERVAL}"),
        ]
        environment = {**os.environ, "KUBECONFIG": str(self.folder / "kubeconfig")}
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
            assert process.poll() is None, (self.folder / "log").read_text()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def summary(self) -> dict[str, Any]:
        (found,) = self.volcano.all("jobtemplates.flow.volcano.sh")
        return dict(json.loads(found["metadata"]["annotations"].get(SUMMARY, "{}")))

    def phases(self) -> dict[str, str]:
        return {
            job["metadata"]["name"]: str(job.get("status", {}).get("state", {}).get("phase"))
            for job in self.volcano.all(JOBS)
        }

    def gpu_hours(self) -> float:
        ledger = json.loads((self.claim / template_name(self.key) / LEDGER).read_text())
        return sum(float(each["seconds"]) for each in ledger.values()) / 3600


def controlled(volcano: Scheduling, folder: Path, key: str, **changes: Any) -> Controlled:
    made = Controlled(volcano, sweep_settings(key, **changes), folder)
    made.install()
    return made


def test_controller_killed_twenty_times_neither_loses_nor_repeats_a_trial(
    volcano: Scheduling, tmp_path: Path
) -> None:
    sweep = controlled(volcano, tmp_path, "killed")
    luck = random.Random(7)  # noqa: S311
    with Training(volcano, sweep.sweep, sweep.claim) as training:
        for _ in range(KILLS):
            with sweep.running():
                # The controller takes some time to start; most kills happen while it is working.
                time.sleep(luck.uniform(0.5, 4.0))
        with sweep.running():
            await_(lambda: sweep.summary().get("state") == "complete", "the sweep")
    assert not training.errors
    phases = sweep.phases()
    assert len(phases) == TRIALS
    assert set(phases.values()) == {"Aborted", "Completed"}
    assert {len(found) for found in training.uids.values()} == {1}
    assert training.max_gpus <= PARALLEL * GPUS
    summary = sweep.summary()
    assert {each["run"] for each in summary["trials"]} == phases.keys()
    best = summary["trials"][0]
    assert best["phase"] == "succeeded"
    _check_best_trial_equals_a_job(sweep, best)
    _check_recovery_from_a_lost_journal(sweep, phases)


def _check_best_trial_equals_a_job(sweep: Controlled, best: dict[str, Any]) -> None:
    """Apply the best trial as the stack applies a job with its hyperparameters."""
    before = sweep.volcano.job(best["run"])
    job = sweep.sweep.settings.trial(best["hyperparameters"])
    args = replace(sweep_settings(sweep.key).args, job=job)
    (manifest,) = manifests(args, run_name(args), args.image)
    options = ("--server-side", "--force-conflicts", "--field-manager=pulumi", "--filename=-")
    sweep.volcano.kubectl("apply", *options, text=json.dumps(manifest))
    after = sweep.volcano.job(best["run"])
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    time.sleep(1)
    assert sweep.volcano.phase(best["run"]) == before["status"]["state"]["phase"]
    assert not sweep.volcano.placed()


def _check_recovery_from_a_lost_journal(sweep: Controlled, phases: dict[str, str]) -> None:
    folder = sweep.claim / template_name(sweep.key)
    (folder / JOURNAL).unlink()
    (done, *_) = (run for run, phase in phases.items() if phase == "Completed")
    # Only the manifest on the claim remains of this trial.
    sweep.volcano.delete(done)
    name = ("jobtemplate", template_name(sweep.key), "-n", NAMESPACE)
    sweep.volcano.kubectl("annotate", *name, f"{SUMMARY}-")
    with sweep.running():
        await_(lambda: sweep.summary().get("state") == "complete", "the rebuilt study")
    remaining = {run: phase for run, phase in phases.items() if run != done}
    assert sweep.phases() == remaining
    (described_again,) = parse_plan((sweep.folder / PLAN).read_text()).values()
    assert Study(folder, described_again).trials().keys() == phases.keys()


def test_spent_budget_pauses_every_trial_and_is_not_exceeded(
    volcano: Scheduling, tmp_path: Path
) -> None:
    budget = {"gpu_hours": 0.04}
    # The reserve covers the grace period, which is longer than a pause takes on a busy machine.
    job = {"grace_seconds": 4}
    sweep = controlled(volcano, tmp_path, "spent", job=job, budget=budget, early_stopping=None)
    with Training(volcano, sweep.sweep, sweep.claim) as training, sweep.running():
        await_(lambda: sweep.summary().get("state") == "budget spent", "the budget")
        await_(lambda: set(sweep.phases().values()) <= {"Aborted", "Completed"}, "a pause")
        created = len(sweep.phases())
        time.sleep(3)
        assert len(sweep.phases()) == created
        assert not volcano.placed()
    assert not training.errors
    assert training.max_gpus <= PARALLEL * GPUS
    assert 0 < sweep.gpu_hours() <= budget["gpu_hours"]


@pytest.mark.slow
def test_winner_of_real_training_runs_equals_an_undisturbed_run(
    volcano: Scheduling, tmp_path: Path
) -> None:
    # With this seed, two good trials precede two with a much too small learning rate, so that a
    # paused trial is promoted in any order of events.
    small = {"model": "digits-net", "dataset": "digits", "epochs": EPOCHS}
    hyperparameters = small | {"step_delay": 0.05, "seed": 312}
    job = {"gpus_per_node": 1, "grace_seconds": 60, "hyperparameters": hyperparameters}
    sweep = controlled(volcano, tmp_path, "trained", job=job, trials=4, winner="serve")
    with Programs(volcano, sweep.sweep, sweep.claim) as training, sweep.running():
        await_(lambda: sweep.summary().get("state") == "complete", "the sweep")
        await_(lambda: not training.processes, "the programs")
    assert not training.errors
    assert set(training.codes) == {exit_codes.DONE, exit_codes.INTERRUPTED}
    summary = sweep.summary()
    trials = summary["trials"]
    finished = {each["run"] for each in trials if each["phase"] == "succeeded"}
    paused = {each["run"] for each in trials if each["phase"] == "paused"}
    assert finished
    assert paused
    # A model server follows the link.
    link = sweep.claim / winner_path(sweep.sweep)
    assert link.resolve() == sweep.claim / summary["winner"]
    losses = {run: read_manifest(sweep.claim / run / "export").metrics["loss"] for run in finished}
    assert losses[summary["winner"]] == min(losses.values())
    ran = {job["metadata"]["name"]: job for job in volcano.all(JOBS)}
    resumed = [run for run in finished if ran[run]["status"].get("retryCount")]
    assert resumed, "no trial was paused and promoted"
    for run in resumed:
        command = ran[run]["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["command"]
        assert start_program(program(command, tmp_path)).wait(500) == exit_codes.DONE
        for folder in (tmp_path / run, sweep.claim / run):
            assert (folder / PROGRESS_FILE).exists()
        undisturbed, found = (
            read_manifest(each / run / "export") for each in (tmp_path, sweep.claim)
        )
        assert found.weights.sha256 == undisturbed.weights.sha256
