"""Updates of a small stack that are killed with all their processes, and what they leave behind."""

import json
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from tests.cluster.platform import ROOT, Platform, await_
from tests.processes import kill_session
from tests.readme import blocks

NAME = "interrupted"
Objects = Counter[tuple[str, str, str]]
"""Number of objects by kind, namespace and name."""


@dataclass(frozen=True)
class Stack:
    """A separate stack that uses the platform's cluster, tools and backend."""

    platform: Platform
    environment: dict[str, str]
    kinds: tuple[str, ...]
    """All resources that `kubectl get` can list."""

    def configure(self, turn: int) -> None:
        """Write a configuration that has many settings unique to this turn."""
        document = yaml.safe_load((ROOT / "Pulumi.simulated.yaml").read_text())
        document["config"] = _small_stack(document["config"], turn)
        file = self.platform.checkout / f"Pulumi.{NAME}.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False))

    def pulumi(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.type(shlex.join(["pulumi", *arguments, "--stack", NAME, "--non-interactive"]))

    def type(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command, which may fail."""
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.platform.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def update(self) -> int:
        """Run an undisturbed update and return the number of its events about objects."""
        done = self.pulumi("up", "--yes", "--skip-preview")
        assert done.returncode == 0, done.stdout + done.stderr
        return len(dict.fromkeys(_objects(done.stdout.splitlines())))

    def kill_update(self, events: int, seconds: float) -> str:
        """Kill all processes of an update after this number of events; return the last event."""
        process = subprocess.Popen(
            ["pulumi", "up", "--yes", "--skip-preview", "--stack", NAME, "--non-interactive"],
            cwd=self.platform.checkout,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        seen: dict[str, None] = {}
        while len(seen) < events and (line := process.stdout.readline()):
            seen |= dict.fromkeys(_objects([line]))
        time.sleep(seconds)
        kill_session(process)
        seen |= dict.fromkeys(_objects(process.communicate()[0].splitlines()))
        return "it had ended" if process.returncode == 0 else ["nothing yet", *seen][-1]

    def settle(self) -> None:
        """Wait until the cluster has exactly the stack's objects: no duplicates or leftovers."""
        deployment = self.deployment()
        assert not deployment.get("pending_operations")
        declared = Counter(
            _identity(outputs)
            for resource in deployment["resources"]
            if resource["type"].startswith("kubernetes:")
            # Read-only resources, such as the namespace that identifies the cluster, do not count.
            and not resource.get("external")
            and (outputs := resource.get("outputs"))
        )
        assert max(declared.values()) == 1, declared
        last: list[dict[str, Any]] = []

        def is_settled() -> bool:
            last[:] = self._items()
            return Counter(map(_identity, last)) == declared

        try:
            # The cluster's garbage collector deletes a run's Job some time after its pods.
            await_(is_settled, "the cluster has exactly the objects of the stack")
        except AssertionError as error:
            more = [_describe(item) for item in last if _identity(item) not in declared]
            less = declared - Counter(map(_identity, last))
            pods = [_describe(item) for item in self._pods()]
            message = f"left over: {more}; missing: {dict(less)}; pods: {pods}"
            raise AssertionError(message) from error

    def live(self) -> Objects:
        """Return the objects in the cluster that updates of this stack created."""
        return Counter(map(_identity, self._items()))

    def _items(self) -> list[dict[str, Any]]:
        command = ["kubectl", "get", ",".join(self.kinds), "--all-namespaces"]
        listing = self.type(shlex.join([*command, "--show-managed-fields", "--output=json"]))
        assert listing.returncode == 0, listing.stderr
        return [item for item in json.loads(listing.stdout)["items"] if _belongs_to_stack(item)]

    def _pods(self) -> list[dict[str, Any]]:
        listing = self.type(f"kubectl get pods --namespace ml-{NAME} --output=json")
        return list(json.loads(listing.stdout)["items"])

    def is_locked(self) -> bool:
        """Return whether an update is in progress or was killed while in progress."""
        return any((self._backend / "locks").rglob(f"{NAME}/*.json"))

    def deployment(self) -> dict[str, Any]:
        """Read the stack's state from its file, because the CLI is slower."""
        file = self._backend / "stacks" / "gpu-platform" / f"{NAME}.json"
        return dict(json.loads(file.read_text())["checkpoint"]["latest"])

    @property
    def _backend(self) -> Path:
        return Path(urlsplit(self.environment["PULUMI_BACKEND_URL"]).path) / ".pulumi"


def new_stack(platform: Platform) -> Stack:
    """Return the stack, which is still empty."""
    kinds = platform.shell("kubectl api-resources --verbs=list,create,patch --output=name")
    output = platform.shell("env --null")
    environment = dict(entry.split("=", 1) for entry in output.split("\0") if "=" in entry)
    stack = Stack(platform, environment, tuple(kinds.split()))
    stack.configure(0)
    created = stack.type(f"pulumi stack init {NAME} --non-interactive")
    assert created.returncode == 0, created.stderr
    return stack


def commands(platform: Platform, page: str, containing: str) -> list[str]:
    """Return the commands that a page shows for `prod`, adapted to this stack."""
    found = blocks(platform.checkout / "docs" / page)
    (block,) = (b for b in found if any(containing in command for command in b.commands))
    here = (command.replace("--stack prod", f"--stack {NAME}") for command in block.commands)
    return [f"{command} --non-interactive" for command in here]


def _small_stack(config: dict[str, Any], turn: int) -> dict[str, Any]:
    """Return queues, classes and a run for a turn, with names that no other stack has."""
    suffix = f"-{NAME}"
    training = config["gpu-platform:training"]["jobs"]["sweep"]
    hyperparameters = {**training["hyperparameters"], "epochs": 5 + turn}
    job = {**training, "queue": f"research{suffix}", "priority_class": f"training{suffix}"}
    job |= {"hyperparameters": hyperparameters, "on_change": "replace"}
    (volume,) = config["gpu-platform:storage"]["volumes"].values()
    queues = {f"team-{turn}-{number}{suffix}": {"weight": 1} for number in range(4)}
    return config | {
        "gpu-platform:volcano": {
            "install": False,
            "queues": {f"research{suffix}": {"weight": 1 + turn}, **queues},
            "priority_classes": {f"training{suffix}": {"value": 100}},
        },
        "gpu-platform:storage": {
            "volumes": {f"checkpoints{suffix}": volume},
            "claims": {
                "checkpoints": {"size": "5Gi", "volume": f"checkpoints{suffix}", "retain": False}
            },
        },
        "gpu-platform:tenancy": {"namespace": f"ml{suffix}", "quota": {"pods": 100 + turn}},
        "gpu-platform:training": {"jobs": {"sweep": job}},
        "gpu-platform:inference": {},
    }


def _objects(lines: Iterable[str]) -> Iterator[str]:
    """Yield the objects in output lines without durations, which change every second."""
    for line in lines:
        if "kubernetes:" in line:
            yield " ".join(line.partition(" (")[0].split())


def _identity(item: dict[str, Any]) -> tuple[str, str, str]:
    metadata = item["metadata"]
    group = item["apiVersion"].rpartition("/")[0]
    return f"{item['kind']}.{group}", metadata.get("namespace", ""), metadata["name"]


def _describe(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    since, finalizers = metadata.get("deletionTimestamp"), metadata.get("finalizers", [])
    phase = item.get("status", {}).get("phase", "")
    return f"{_identity(item)}, {phase} deleted {since or 'never'}, held by {finalizers}"


def _belongs_to_stack(item: dict[str, Any]) -> bool:
    metadata = item["metadata"]
    managers = [entry["manager"] for entry in metadata.get("managedFields", [])]
    name = NAME in metadata["name"] or NAME in metadata.get("namespace", "")
    return name and any(manager.startswith("pulumi-kubernetes") for manager in managers)
