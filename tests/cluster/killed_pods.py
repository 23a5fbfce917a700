"""Concurrent runs of several job kinds, each of which loses a pod during training."""

import json
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.platform import COLD_SECONDS, Platform, await_

PROGRAM = {"model": "digits-net", "dataset": "digits", "batch_size": 32, "learning_rate": 0.005}
# Each epoch takes two seconds. Even if every command takes several seconds, there are enough
# epochs to kill a pod after the first one and observe the resumed run.
TRAINED = {**PROGRAM, "epochs": 20, "step_delay": 0.08, "peer_timeout": 120}


@dataclass
class KilledPods:
    """Pods and log lines of each job before and after one of its pods was killed."""

    platform: Platform
    jobs: tuple[str, ...]
    """Keys of the jobs; names of their runs and pods begin with these keys."""
    output: str = ""
    placed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    after: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    older: frozenset[str] = frozenset()
    """Names of pods that belong to earlier runs."""

    def kill(self, process: "subprocess.Popen[str]") -> None:
        """Kill a pod of each job once it has checkpoints, while `make up` is running."""

        def all_killed() -> bool:
            self._kill_pods_of_runs_with_a_checkpoint()
            time.sleep(1)
            return len(self.before) == len(self.jobs) or process.poll() is not None

        await_(all_killed, f"a killed pod of each of {self.jobs}")

    def finish(self, process: "subprocess.Popen[str]") -> None:
        """Wait until `make up` succeeds."""
        self.output, _ = process.communicate(timeout=COLD_SECONDS)
        assert process.returncode == 0, self.output
        assert self.before.keys() == set(self.jobs), self.output
        pods = self.pods()
        self.after = {job: self.lines(pods[job]) for job in self.jobs}

    def kubectl(self, *arguments: str) -> str:
        """Return kubectl's output, which is empty while the API server does not answer."""
        done = subprocess.run(
            ["kubectl", *arguments],
            env=self.platform.shell_environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def pods(self) -> dict[str, list[dict[str, Any]]]:
        """Return the pods of each job, sorted by name. The first one logs the progress."""
        found = json.loads(self.kubectl("get", "pods", "-n=ml-dev", "-o=json") or "{}")
        # A Job keeps failed pods in addition to their replacements.
        by_name = {
            str(pod["metadata"]["name"]): pod
            for pod in found.get("items", [])
            if pod["status"]["phase"] != "Failed"
            and "gpu-platform.dev/service" not in pod["metadata"]["labels"]
        }
        return {
            job: [
                by_name[name]
                for name in sorted(by_name.keys() - self.older)
                if name.startswith(f"{job}-")
            ]
            for job in self.jobs
        }

    def lines(self, pods: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the log lines of rank 0 of a run since its last start."""
        if not pods or pods[0]["status"]["phase"] == "Pending":
            return []
        text = self.kubectl("logs", "-n=ml-dev", pods[0]["metadata"]["name"])
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]

    def has_finished_an_epoch(self, job: str) -> bool:
        """Return whether a run has finished an epoch since its last start."""
        return _finishes_an_epoch(self.lines(self.pods()[job]))

    def _kill_pods_of_runs_with_a_checkpoint(self) -> None:
        pods = self.pods()
        for job in [job for job in self.jobs if job not in self.before]:
            lines = self.lines(pods[job])
            if _finishes_an_epoch(lines):
                self.before[job] = lines
                self.placed[job] = [
                    pod for pod in pods[job] if "launcher" not in pod["metadata"]["name"]
                ]
                victim = self.placed[job][-1]["metadata"]["name"]
                self.kubectl("delete", "pod", "-n=ml-dev", victim, "--grace-period=0", "--force")

    def status(self, resource: str, job: str) -> dict[str, Any]:
        """Return the status of a job's newest object of a kind."""
        found = json.loads(self.kubectl("get", resource, "-n=ml-dev", "-o=json"))["items"]
        *_, newest = sorted(
            (item for item in found if item["metadata"]["name"].partition("-")[0] == job),
            key=lambda item: str(item["metadata"]["creationTimestamp"]),
        )
        return dict(newest.get("status", {}))

    def check_two_nodes(self, job: str) -> None:
        """Check that two processes trained together in two pods on two nodes."""
        pods = self.placed[job]
        assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2
        (start,) = [line for line in self.before[job] if line["event"] == "start"]
        assert start["processes"] == 2

    def check_resumed(self, job: str) -> None:
        """Check that the run resumed from a checkpoint and finished after its pod was killed."""
        first = next(line for line in self.after[job] if line["event"] == "epoch")
        assert first["epoch"] >= 2
        finished = self.after[job][-1]
        assert finished["event"] == "finished"
        assert finished["accuracy"] > 0.9
        assert finished["event"] not in {line["event"] for line in self.before[job]}

    def check_reported(self, kind: str) -> None:
        """Check that `make up` waited for the run and shows its result."""
        text = self.output
        row = text[text.rindex(f"(2 x 1 GPU, {kind})") :]
        assert "accuracy" in row[: row.find("training run")] if "training run" in row else row


def _finishes_an_epoch(lines: list[dict[str, Any]]) -> bool:
    return any(line["event"] == "epoch" for line in lines)
