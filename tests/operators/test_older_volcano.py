"""Volcano 1.10 on simulated nodes: an upgrade while gangs run and wait, and a simulation.

Both releases of the upgrade are complete: definitions, webhooks, controllers and scheduler. The
upgrade changes them in the order of the chart's objects, and removes the webhooks that the new
chart does not have.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import cache_root
from devcluster.toolchain import ensure, pins
from devcluster.toolchain.builder import Store
from devcluster.toolchain.go import Go
from devcluster.toolchain.manifests import VolcanoFiles
from gitops.forecast.simulate import simulate
from infra.settings.volcano import SchedulerSettings
from infra.volcano import scheduler_configuration
from simulation.configuration import pki
from simulation.volcano import Webhooks, apply_definitions
from tests.cluster.gangs import MALFORMED_QUEUE, VOLCANO, WEBHOOK, placed
from tests.cluster.platform import Platform, await_
from tests.cluster.scheduling import Scheduling, stack, supporting_objects
from tests.gitops.forecast.states import GANGS, TAKEN, state

OLD = "1.10"
PROGRAMS = ("vc-webhook-manager", "vc-controller-manager", "vc-scheduler")
JOBS = {
    "single": {"queue": "vision"},
    "gang": {"queue": "vision", "nodes": 2},
    "waits": {"queue": "language", "nodes": 2},
    "indexed": {"queue": "language", "kind": "indexed"},
    "late": {"queue": "vision", "nodes": 2},
}
RUNNING = ("single", "gang")


def cache_with_the_old_release(folder: Path) -> Path:
    """Return a cache of tools that has the old release in place of the pinned one."""
    tools = ensure("simulated", cache_root(), sys.stderr.write, ["volcano-1.10"])
    cache, module = folder / "cache", pins.load().module("tools")
    (cache / "tools").mkdir(parents=True)
    for entry in tools.bin.parent.iterdir():
        if not entry.name.startswith((".", "bin-", *PROGRAMS)):
            (cache / "tools" / entry.name).symlink_to(entry)
    for program in module.programs:
        if program.name in PROGRAMS:
            place = Store(cache / "tools").path(module, program)
            place.parent.mkdir()
            shutil.copyfile(tools.bin / f"{program.name}-{OLD}", place)
            place.chmod(0o755)
    files, old = VolcanoFiles.of(module, cache), pins.load().module(f"volcano-{OLD}")
    scratch = folder / "scratch"
    scratch.mkdir()
    go = Go(cache_root() / "go")
    files.make(old, go, scratch, folder / "volcano.log")
    go.remove_caches()
    return cache


@dataclass
class Upgrade:
    """A cluster with the old release, and its upgrade to the new one."""

    cluster: Scheduling
    cache: Path

    @property
    def state(self) -> Path:
        return self.cluster.platform.state / "simulated"

    def versions(self) -> set[str]:
        """Return the versions of the programs; empty while one of them is not running."""
        found = set()
        for program in PROGRAMS:
            try:
                path = self.cluster.platform.process(program).exe()
            except AssertionError:
                return set()
            done = subprocess.run([path, "--version"], capture_output=True, text=True)
            found |= {*re.findall(r"^Version: (\S+)", done.stdout, re.MULTILINE)}
        return found

    def upgrade(self) -> None:
        """Replace definitions, webhooks and programs, as the new chart's release does."""
        new = ensure("simulated", cache_root(), sys.stderr.write)
        kubeconfig = self.state / "kubeconfig"
        apply_definitions(kubeconfig, new.bin, new.volcano.definitions)
        old = VolcanoFiles.of(pins.load().module("tools"), self.cache)
        names = {kind_and_name(each) for each in json.loads(old.webhooks.read_text())}
        served = self._use_the_port_of_the_old_webhooks(new.volcano.webhooks)
        names -= {kind_and_name(each) for each in served.configurations}
        served.apply(kubeconfig, new.bin)
        for kind, name in sorted(names):
            self.cluster.kubectl("delete", kind, name)
        (binaries,) = (self.cache / "tools").glob("bin-*")
        for program in PROGRAMS:
            command = [str(new.bin / program), '"$@"']
            if program == "vc-webhook-manager":
                paths = (
                    w["clientConfig"]["url"] for c in served.configurations for w in c["webhooks"]
                )
                admitted = ",".join(url.partition(f":{served.port}")[2] for url in paths)
                command.append(f"--enabled-admission={admitted}")
            running = self.cluster.platform.process(program)
            replacement = binaries / f"{program}.new"
            replacement.write_text(f"#!/bin/sh\nexec {' '.join(command)}\n")
            replacement.chmod(0o755)
            replacement.replace(binaries / program)
            running.kill()  # The cluster restarts the program.
            pid = self.state / "logs" / f"{program}.pid"
            previous_pid = str(running.pid)
            while pid.read_text() == previous_pid:
                time.sleep(0.1)
        self.cluster.configure(SchedulerSettings())

    def _use_the_port_of_the_old_webhooks(self, file: Path) -> Webhooks:
        command = self.cluster.platform.process("vc-webhook-manager").cmdline()
        (port,) = (int(word.partition("=")[2]) for word in command if word.startswith("--port="))
        made = Webhooks.of(file, pki(self.state / "control-plane"))
        for webhook in (each for found in made.configurations for each in found["webhooks"]):
            url = webhook["clientConfig"]["url"]
            webhook["clientConfig"]["url"] = url.replace(f":{made.port}/", f":{port}/")
        return Webhooks(made.configurations, made.pki, port)


def kind_and_name(webhook: dict[str, Any]) -> tuple[str, str]:
    return str(webhook["kind"]), str(webhook["metadata"]["name"])


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    """The cluster with the old release, three nodes and a stack's queues."""
    folder = tmp_path_factory.mktemp("upgrade")
    with pytest.MonkeyPatch.context() as patch:
        cache = cache_with_the_old_release(folder)
        patch.setenv("GPU_PLATFORM_CACHE", str(cache))
        platform = Platform.copied(folder, "simulated")
        cluster = Scheduling(platform, nodes=3)
        patch.undo()
        try:
            cluster.apply(*supporting_objects(stack({}, version="1.10.0", **VOLCANO)))
            cluster.configure(SchedulerSettings(), topology=False)
            yield Upgrade(cluster, cache)
        finally:
            cluster.close()
            patch.setenv("GPU_PLATFORM_CACHE", str(cache))
            cluster.devcluster("down", "--purge")


def malformed_queue_error(cluster: Scheduling) -> str:
    """Return the reason for which a malformed queue is rejected; empty if it is accepted."""
    arguments = ["create", "--dry-run=server", "--filename=-"]
    done = cluster.attempt(*arguments, text=json.dumps(MALFORMED_QUEUE))
    return done.stderr


def uids(cluster: Scheduling) -> set[str]:
    """Return the UIDs of the running gangs' pods. Fail if one of them has restarted."""
    pods = [pod for job in RUNNING for pod in cluster.pods(job)]
    assert not any(
        each["restartCount"] for pod in pods for each in pod["status"].get("containerStatuses", [])
    )
    return {pod["metadata"]["uid"] for pod in pods}


def test_gangs_survive_an_upgrade_and_waiting_gangs_start_afterwards(upgraded: Upgrade) -> None:
    cluster = upgraded.cluster
    assert upgraded.versions() == {"v1.10.0"}
    jobs = stack(JOBS, version="1.10.0", **VOLCANO)
    cluster.submit(jobs, *RUNNING)
    placed(cluster, single=1, gang=2)
    cluster.submit(jobs, "waits", "indexed")
    await_(lambda: cluster.phase("waits") == "Pending", "the waiting gang")
    placed(cluster, single=1, gang=2)
    before = uids(cluster)

    upgraded.upgrade()
    await_(lambda: upgraded.versions() == {"v1.14.1"}, "the programs of the new release")
    # The old release accepts the malformed queue.
    await_(lambda: WEBHOOK in malformed_queue_error(cluster), "the webhooks of the new release")
    cluster.submit(stack(JOBS, **VOLCANO), "late")
    await_(lambda: cluster.phase("late") == "Pending", "a job of the new release")
    placed(cluster, single=1, gang=2)
    assert uids(cluster) == before
    for job in RUNNING:
        assert cluster.phase(job) == "Running"
        assert "retryCount" not in cluster.job(job)["status"]

    cluster.delete("late")
    cluster.delete(*RUNNING)
    placed(cluster, waits=2, indexed=1)
    cluster.fail(cluster.pods("waits")[0], 1)
    await_(lambda: cluster.job("waits")["status"].get("retryCount") == 1, "a restart")
    placed(cluster, waits=2, indexed=1)
    cluster.submit(stack(JOBS, **VOLCANO), "late")
    cluster.delete("waits")
    placed(cluster, late=2, indexed=1)


def test_simulation_uses_the_scheduler_release_of_the_target_cluster() -> None:
    configuration = scheduler_configuration(GANGS, hierarchical=False, topology=False)
    target = {"volcano": "v1.10.2", "scheduler_configuration": configuration}
    answer = simulate(state().model_copy(update=target), TAKEN, repeat=1)
    versions = "the target cluster runs v1.10.2, but the simulation runs Volcano v1.10.0"
    assert versions in answer.assumptions
    assert not any("rejects" in text for text in answer.assumptions)
    assert {each.name: each.verdict for each in answer.gangs} == {
        "a": "runs",
        "b": "runs",
        "large": "starts later",
        "small": "starts at once",
    }
