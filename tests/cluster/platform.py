"""The product as users run it: a checkout, `make`, and a shell with `make env`."""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
UPDATE = "pulumi up --yes --skip-preview --non-interactive --color never --stack dev"
"""Command that updates the stack `dev`."""
HANG_SECONDS = 1200
"""Seconds after which a wait counts as hanging; far more than slow machines need."""
COLD_SECONDS = 3000
"""Seconds after which `make` counts as hanging; it may first install and compile everything."""


def copy_checkout(target: Path) -> Path:
    """Copy the work tree as Git sees it, for tests to edit. The virtual environment is shared."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, copy = ROOT / name, target / name
        if source.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    (target / ".venv").symlink_to(ROOT / ".venv")
    return target


TAKE_DOWN = """
tail --pid="$1" --follow /dev/null
test ! -e "$GPU_PLATFORM_STATE/$2/control-plane" || make down NODES="$2" PURGE=1
"""
"""Shell script that waits until a process has ended, and then takes down its cluster.

Its arguments are the ID of the process and the kind of the cluster.
"""


@dataclass(frozen=True)
class Platform:
    """A checkout with a separate cluster state. Tools and images are in the usual cache."""

    checkout: Path
    state: Path
    nodes: str

    @classmethod
    def copied(cls, folder: Path, nodes: str) -> Self:
        """Return a platform with a copy of the checkout, which does not outlive this process."""
        platform = cls(copy_checkout(folder / "checkout"), folder / "state", nodes)
        platform.take_down_after(os.getpid())
        return platform

    def take_down_after(self, process: int) -> None:
        """Take the cluster down as soon as a process has ended.

        Fixtures are not finalized if a test process is killed, and pytest-xdist ends the processes
        of an interrupted run after a few seconds.
        """
        subprocess.run(
            ["setsid", "--fork", "bash", "-c", TAKE_DOWN, "bash", str(process), self.nodes],
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("PULUMI_", "MAKE", "MFLAGS"))
        }
        return {**kept, "GPU_PLATFORM_STATE": str(self.state), "COLUMNS": "120"}

    @property
    def stack(self) -> str:
        return "dev" if self.nodes == "real" else "simulated"

    @property
    def stack_file(self) -> Path:
        return self.checkout / f"Pulumi.{self.stack}.yaml"

    @contextlib.contextmanager
    def started(self, *targets: str) -> Iterator["subprocess.Popen[str]"]:
        """Yield a running `make`, and kill it at the end.

        A `make` that keeps running would block all later commands of the platform.
        """
        process = subprocess.Popen(
            ["make", "--no-print-directory", *targets, f"NODES={self.nodes}"],
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # Tests that run in the background ignore SIGINT, and `make` would inherit this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            yield process
        finally:
            kill_all(process)

    def make(self, *targets: str, status: int = 0) -> str:
        """Run `make` and return its output. Fail if its exit status differs from `status`."""
        with self.started(*targets) as process:
            try:
                output, _ = process.communicate(timeout=COLD_SECONDS)
            except subprocess.TimeoutExpired:
                state = self._workloads()
                kill_all(process)
                output, _ = process.communicate()
                pytest.fail(f"make {targets} hangs:\n{output}\n{state}")
        assert process.returncode == status, (
            f"make {targets} exited with {process.returncode}:\n{output}"
        )
        return output

    @cached_property
    def shell_environment(self) -> dict[str, str]:
        """Environment after `eval "$(make env)"`, which is constant while the cluster is up."""
        setup = f'eval "$(make --no-print-directory env NODES={self.nodes})"'
        entries = self.run(f"{setup} && env --null").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def shell(self, command: str) -> str:
        """Run a command in a shell after `make env`. Return its output, or fail if it fails."""
        return self.run(command, self.shell_environment)

    def run(self, command: str, environment: dict[str, str] | None = None) -> str:
        """Run a command in the checkout. Return its output, or fail if it fails."""
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.checkout,
            env=environment or self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def kubectl(self, *arguments: str) -> Any:
        """Return kubectl's answer as JSON."""
        return json.loads(self.shell(shlex.join(["kubectl", *arguments, "--output=json"])))

    def _workloads(self) -> str:
        """Describe the workloads of the stack's namespace, for the report of a hang."""
        setup = f'eval "$(make --no-print-directory env NODES={self.nodes})"'
        kinds = "jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh,deployments,pods,events"
        kubectl = "timeout 60 kubectl"
        commands = [f"{kubectl} get {kinds} --all-namespaces --output=wide"]
        commands += [f"{kubectl} describe jobs.batch.volcano.sh,pods --namespace {self.namespace}"]
        done = subprocess.run(
            ["bash", "-c", "; ".join([setup, *commands])],
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        return done.stdout + done.stderr

    def refusal(self, manifest: dict[str, Any]) -> str:
        """Return the reason why the API server rejects an object. Fail if it accepts it."""
        text = shlex.quote(json.dumps(manifest))
        return self.shell(f"! kubectl create --filename=- 2>&1 <<< {text}")

    def process(self, program: str) -> psutil.Process:
        """Return a process of the cluster."""
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or [""]
            mine = any(str(self.state) in word for word in command)
            if mine and command[0].endswith(f"/{program}"):
                # A cached process may have the identity of an earlier one with the same ID.
                return psutil.Process(process.pid)
        raise AssertionError(f"{program} is not running")

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs, cached until the next update."""
        state = self.state / self.nodes / "pulumi" / ".pulumi" / "stacks" / "gpu-platform"
        written = (state / f"{self.stack}.json").stat().st_mtime_ns
        if self._outputs.get("written") != written:
            found = self.shell(f"pulumi stack output --json --stack {self.stack}")
            self._outputs.update(written=written, found=json.loads(found))
        return dict(self._outputs["found"])

    @cached_property
    def _outputs(self) -> dict[str, Any]:
        return {}

    @property
    def namespace(self) -> str:
        """The namespace of the stack's workloads."""
        return f"ml-{self.stack}"

    def run_name(self, key: str = "digits") -> str:
        return str(self.outputs()["runs"][key]["name"])

    def reset(self) -> None:
        """Discard the edits of the stack's configuration, including those of earlier tests."""
        shutil.copyfile(ROOT / self.stack_file.name, self.stack_file)

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Edit the stack's configuration."""
        document = yaml.safe_load(self.stack_file.read_text())
        change(document["config"])
        self.stack_file.write_text(yaml.safe_dump(document, sort_keys=False))

    def hyperparameters(self, **changed: object) -> None:
        """Edit the hyperparameters of the job `digits`."""
        self.edit(
            lambda config: config["gpu-platform:training"]["jobs"]["digits"][
                "hyperparameters"
            ].update(changed)
        )

    def pods(self, run: str) -> list[dict[str, Any]]:
        label = f"volcano.sh/job-name={run}"
        found = self.kubectl("get", "pods", "-n", self.namespace, "-l", label)
        return list(found["items"])

    def logs(self, run: str) -> list[dict[str, Any]]:
        """Return the output of rank 0 of a run since its last start."""
        text = self.shell(f"kubectl logs -n {self.namespace} {run}-master-0 || true")
        lines = (line for line in text.splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines]

    def await_epoch(self, run: str, epoch: int) -> None:
        """Wait until a run has finished an epoch."""

        def reached() -> bool:
            return any(
                line.get("event") == "epoch" and line["epoch"] >= epoch for line in self.logs(run)
            )

        await_(reached, f"{run} in epoch {epoch}")


@contextlib.contextmanager
def empty_cluster(folder: Path) -> Iterator[Platform]:
    """Yield a cluster without nodes and without a stack, and end it afterwards."""
    platform = Platform.copied(folder, "simulated")
    devcluster = ".venv/bin/python -m devcluster"
    try:
        platform.run(f"{devcluster} up --nodes simulated --simulated-nodes=0")
        yield platform
    finally:
        platform.run(f"{devcluster} down --purge --nodes simulated")


def kill_all(process: "subprocess.Popen[str]") -> None:
    """Kill a process and all its descendants, in any session, and wait for its end."""
    if process.poll() is None:
        below = psutil.Process(process.pid).children(recursive=True)
        for pid in (process.pid, *(child.pid for child in below)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def await_(condition: Callable[[], bool], what: str, pause: float = 1.0) -> None:
    """Wait for a condition, with pauses (s). After `HANG_SECONDS`, fail with its description."""
    deadline = time.monotonic() + HANG_SECONDS
    while (started := time.monotonic()) < deadline:
        if condition():
            return
        # On a busy machine, a poll can take seconds. Polls take at most half of the time.
        time.sleep(max(pause, time.monotonic() - started))
    pytest.fail(f"timed out after {HANG_SECONDS} s waiting for: {what}")


def created(output: str) -> int:
    """Return the number of resources that the update in make's output created."""
    found = re.search(r"pulumi up of stack \w+: (\d+) created", output)
    return int(found[1]) if found else 0
