"""Jobs and queues of a stack on simulated nodes under real Volcano, without Pulumi."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from gitops.forecast.sandbox import connect
from gitops.runs.snapshot import Cluster, Snapshot
from infra import storage, tenancy, volcano
from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.settings import StackSettings, validate
from infra.settings.volcano import SchedulerSettings
from infra.training_run import TrainingJobArgs, manifests
from infra.volcano import scheduler_configuration
from tests.cluster.api_server import ApiServer, Response
from tests.cluster.platform import Platform, await_
from tests.infra.examples import TRAINING_IMAGE
from workload.files import write_atomically

NAMESPACE = "ml"
GPU = "nvidia.com/gpu"
QUEUES = "queues.scheduling.volcano.sh"
KEEP_RUNNING = "gpu-platform.dev/lasts"
"""Annotation that prevents kwok from completing a pod."""


def stack(jobs: dict[str, Any], **volcano_settings: Any) -> StackSettings:
    """Return the settings of a stack with these jobs, which run a plain command each."""
    plain = {"kind": "plain", "command": ["./run"], "cpu": 1, "memory": "1Gi", "shm": "64Mi"}
    described = {
        key: {
            setting: value
            for setting, value in {
                **plain,
                "gpus_per_node": 8,
                "annotations": {KEEP_RUNNING: "yes"},
                **job,
            }.items()
            if value is not None
        }
        for key, job in jobs.items()
    }
    local = {"path": "/shared", "nodes": {"type": ["kwok"]}}
    return validate(
        {
            "cluster": {"context": "gpu-platform-simulated"},
            "volcano": volcano_settings,
            "storage": {
                "volumes": {
                    "shared": {"capacity": "1Gi", "access_modes": ["ReadWriteMany"], "local": local}
                },
                "claims": {"checkpoints": {"size": "1Gi", "volume": "shared"}},
            },
            "tenancy": {"namespace": NAMESPACE},
            "images": {"workloads": {"training": {"reference": TRAINING_IMAGE}}},
            "training": {"jobs": described},
        }
    )


def supporting_objects(settings: StackSettings) -> list[Manifest]:
    """Return the other objects that the jobs require."""
    claim = {"namespace": NAMESPACE, "name": "checkpoints"}
    space = tenancy.TenancyArgs(tenancy=settings.tenancy, gpu_resource=GPU)
    return [
        tenancy.namespace(settings.tenancy),
        tenancy.limit_range(space.tenancy),
        *tenancy.manifests(space),
        *(volcano.queue(key, queue) for key, queue in settings.volcano.queues.items()),
        *(
            volcano.priority_class(key, made)
            for key, made in settings.volcano.priority_classes.items()
        ),
        *(storage.volume(key, made, claim) for key, made in settings.storage.volumes.items()),
        *(storage.claim(key, NAMESPACE, made) for key, made in settings.storage.claims.items()),
    ]


def job_objects(settings: StackSettings, key: str, claim: str = "checkpoints") -> list[Manifest]:
    """Return the objects of a job with a claim. Its run is named after its key."""
    args = TrainingJobArgs(
        key=key,
        job=settings.training.jobs[key],
        namespace=NAMESPACE,
        image=TRAINING_IMAGE,
        image_identity=TRAINING_IMAGE,
        gpu_nodes=GpuNodes(resource=GPU),
        claims={"checkpoints": claim},
    )
    return manifests(args, key, TRAINING_IMAGE)


class Scheduling:
    """A simulated cluster with a stack's queues, in which Volcano schedules jobs."""

    def __init__(self, platform: Platform, nodes: int) -> None:
        self.platform = platform
        self._nodes = nodes
        # kwok completes pods of Jobs immediately. `_keep_annotated_pods_running` adds an exception
        # to the configuration, which kwok reads when it starts.
        self.devcluster("up", "--simulated-nodes=0")
        self._keep_annotated_pods_running()
        # The cluster restarts kwok.
        platform.process("kwok").kill()
        self.devcluster("up", f"--simulated-nodes={nodes}")

    def close(self) -> None:
        """Close the connections to the API server."""
        self._connection.close()

    def devcluster(self, command: str, *options: str) -> str:
        """Return the output of `python -m devcluster`."""
        words = (".venv/bin/python", "-m", "devcluster", command, "--nodes", "simulated", *options)
        return self.platform.run(" ".join(words))

    def configure(
        self, scheduler: SchedulerSettings, *, hierarchical: bool = False, topology: bool = True
    ) -> None:
        """Change the configuration of the scheduler, which reloads it immediately."""
        file = self.platform.state / "simulated" / "volcano" / "scheduler.conf"
        options = {"hierarchical": hierarchical, "topology": topology}
        # The scheduler must not read a partially written file.
        write_atomically(file, scheduler_configuration(scheduler, **options).encode())

    @contextmanager
    def queues(self, settings: StackSettings) -> Iterator[None]:
        """Use another stack's scheduler settings and queues; its jobs are deleted at the end."""
        queues = settings.volcano.queues
        ordered = volcano.parents_first(queues)
        self.configure(settings.volcano.scheduler, hierarchical=settings.volcano.hierarchical)
        for key in ordered:
            self._retry(partial(self._api.apply, volcano.queue(key, queues[key])), key)
        self._await_open(ordered)
        try:
            yield
        finally:
            self.clear()
            for key in reversed(ordered):
                self.delete_queue(key)

    def delete_queue(self, name: str) -> None:
        """Delete a queue whose children have been deleted."""
        path = f"{self._api.path(QUEUES)}/{name}"
        self._retry(partial(self._api.delete, path), name)

    @staticmethod
    def _retry(request: Callable[[], Response], queue: str) -> None:
        """Send a request about a queue until it succeeds, or until the queue does not exist.

        Volcano's webhook reads parents and children of a queue from a cache, which is updated a
        moment after they are created or deleted.
        """
        await_(lambda: (status := request().status) < 300 or status == 404, f"queue {queue}")

    def apply(self, *objects: Manifest) -> None:
        """Create or change objects, one request after another."""
        for manifest in objects:
            response = self._api.apply(manifest)
            assert response.status < 300, response.body
        self._await_open([each["metadata"]["name"] for each in objects if each["kind"] == "Queue"])

    def _await_open(self, names: Collection[str]) -> None:
        """Wait until Volcano's controllers have opened queues: closed queues reject jobs."""

        def opened() -> bool:
            queues = {each["metadata"]["name"]: each for each in self._api.objects(QUEUES)}
            return all(queues[each].get("status", {}).get("state") == "Open" for each in names)

        if names:
            await_(opened, f"open queues {names}", pause=0.1)

    def submit(self, settings: StackSettings, *keys: str) -> None:
        """Submit jobs of the stack at the same time."""
        self.apply(*(made for key in keys for made in job_objects(settings, key)))

    def delete(self, *names: str) -> None:
        """Delete Volcano Jobs and wait until their pods are gone."""
        self.kubectl("delete", "jobs.batch.volcano.sh", "-n", NAMESPACE, *names, "--timeout=600s")
        await_(lambda: not any(map(self.pods, names)), f"the deletion of the pods of {names}", 0.1)

    def clear(self) -> None:
        """Delete all jobs and events, so that the names of the jobs can be used again.

        While pods of a deleted job exist, Volcano's controllers try with growing delays to remove
        the job from their cache. An attempt that is still scheduled when they have removed it would
        remove a new job with the same name, which then never gets pods. Its delay is about as long
        as the pods have existed without their job.
        """
        # Jobs are deleted before their pods, which they would create again.
        kinds = ["jobflows.flow.volcano.sh", "jobs.batch.volcano.sh", "jobs.batch", "pods"]
        kinds += ["podgroups.scheduling.volcano.sh", "events"]
        started, had_jobs = time.monotonic(), bool(self.all("jobs.batch.volcano.sh"))

        def cleared() -> bool:
            for kind in kinds:
                answer = self._api.delete(self._api.path(kind, NAMESPACE))
                assert answer.status == 200, answer.body
            # Controllers create events, and sometimes pods, of jobs that have just been deleted.
            return not any(map(self.all, kinds))

        await_(cleared, "the deletion of all objects", pause=0.1)
        if had_jobs:
            time.sleep(max(2.0, time.monotonic() - started))

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind in the namespace."""
        return self._api.objects(kind, NAMESPACE)

    @cached_property
    def _connection(self) -> httpx.Client:
        return connect(self._kubeconfig)

    @cached_property
    def _api(self) -> ApiServer:
        return ApiServer(self._connection)

    @cached_property
    def _kubeconfig(self) -> Path:
        return self.platform.state / "simulated" / "kubeconfig"

    def snapshot(self) -> Snapshot:
        """Return the cluster as `gitops status` sees it."""
        return Cluster(self._kubectl).snapshot()

    def pods(self, job: str) -> list[dict[str, Any]]:
        """Return the pods of a Volcano Job or an Indexed Job."""
        return [pod for pod in self.all("pods") if _job_of(pod) == job]

    def placed(self) -> Counter[str]:
        """Return the number of pods with a node, by job."""
        return Counter(_job_of(pod) for pod in self._with_a_node())

    def nodes(self, job: str) -> list[str]:
        """Return the nodes of a job's pods, one per pod."""
        return sorted(pod["spec"]["nodeName"] for pod in self._with_a_node() if _job_of(pod) == job)

    def _with_a_node(self) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.all("pods")
            if pod["spec"].get("nodeName")
            and pod["status"]["phase"] in ("Pending", "Running")
            and "deletionTimestamp" not in pod["metadata"]
        ]

    def evicted(self, reason: str) -> set[str]:
        """Return jobs with pods that Volcano evicted for this reason (`preempt` or `reclaim`)."""
        return {
            event["involvedObject"]["name"].rpartition("-worker-")[0]
            for event in self.all("events")
            if event["reason"] == "Evict" and event["message"].endswith(f"because of {reason}")
        }

    def job(self, name: str) -> dict[str, Any]:
        """Return a Volcano Job."""
        (found,) = (j for j in self.all("jobs.batch.volcano.sh") if j["metadata"]["name"] == name)
        return found

    def phase(self, name: str) -> str:
        """Return the phase of a Volcano Job."""
        return str(self.job(name).get("status", {}).get("state", {}).get("phase"))

    def command(self, job: str, action: str) -> None:
        """Send the command of `vcctl job suspend` (AbortJob) or `vcctl job resume` (ResumeJob)."""
        found = self.job(job)
        owner = {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "name": job,
            "uid": found["metadata"]["uid"],
            "controller": True,
        }
        self.apply(
            {
                "apiVersion": "bus.volcano.sh/v1alpha1",
                "kind": "Command",
                "metadata": {
                    "name": f"{job}-{action.lower()}",
                    "namespace": NAMESPACE,
                    "ownerReferences": [owner],
                },
                "action": action,
                "target": owner,
            }
        )

    def finish(self, pod: dict[str, Any]) -> None:
        """Make a simulated pod succeed."""
        self._end(pod, "Succeeded", {"exitCode": 0, "reason": "Completed"})

    def fail(self, pod: dict[str, Any], code: int, message: str = "") -> None:
        """Make a simulated pod fail with an exit code and a termination message."""
        self._end(pod, "Failed", {"exitCode": code, "reason": "Error", "message": message})

    def _end(self, pod: dict[str, Any], phase: str, terminated: dict[str, Any]) -> None:
        self._await_start(pod)
        finished = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ended = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": pod["spec"]["containers"][0]["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {**terminated, "finishedAt": finished}},
        }
        path = f"{self._api.path('pods', NAMESPACE)}/{pod['metadata']['name']}/status"
        answer = self._api.patch(path, {"status": {"phase": phase, "containerStatuses": [ended]}})
        assert answer.status == 200, answer.body

    def _await_start(self, pod: dict[str, Any]) -> None:
        """Wait until Volcano knows that the pod's job runs; otherwise it may miss the pod's end.

        The job of a pod that is being aborted does not start, and the pod is soon deleted.
        """
        name = _job_of(pod)
        jobs = [job["metadata"]["name"] for job in self.all("jobs.batch.volcano.sh")]

        def started() -> bool:
            present = {each["metadata"]["uid"] for each in self.all("pods")}
            starting = ("Pending", "Aborted", "Restarting")
            return pod["metadata"]["uid"] not in present or self.phase(name) not in starting

        if name in jobs:
            await_(started, f"the start of {name}")

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl and return its output; fail if it fails."""
        done = self.attempt(*arguments, text=text)
        assert done.returncode == 0, f"kubectl {arguments}: {done.stderr}"
        return done.stdout

    def attempt(
        self, *arguments: str, text: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run kubectl, which may fail."""
        return subprocess.run(
            [*self._kubectl, *arguments], input=text, capture_output=True, text=True
        )

    @cached_property
    def _kubectl(self) -> list[str]:
        kubectl = self.platform.shell("command -v kubectl").strip()
        return [kubectl, f"--kubeconfig={self._kubeconfig}"]

    def _keep_annotated_pods_running(self) -> None:
        (file,) = (self.platform.state / "simulated").rglob("kwok.yaml")
        stages = list(yaml.safe_load_all(file.read_text()))
        (completing,) = (s for s in stages if s["metadata"].get("name") == "pod-complete")
        condition = {"key": f'.metadata.annotations["{KEEP_RUNNING}"]', "operator": "DoesNotExist"}
        completing["spec"]["selector"]["matchExpressions"].append(condition)
        file.write_text(yaml.safe_dump_all(stages))


def _job_of(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    return str(labels.get("volcano.sh/job-name") or labels.get("batch.kubernetes.io/job-name"))
