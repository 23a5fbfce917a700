"""A real Prometheus scrapes real nodes: faults fire alerts, and dashboards have data.

All faults exist at the same time, and thresholds are a fraction of a minute.
"""

import json
import os
import re
import shlex
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from devcluster.paths import Layout
from infra.monitoring import manifests
from infra.observability.alerts import alerts
from infra.observability.dashboards import dashboards
from infra.settings.monitoring import MonitoringSettings
from tests.cluster.load import Load, inference_request
from tests.cluster.platform import UPDATE, Platform, await_
from tests.infra.test_monitoring import args
from tests.operators import prometheus
from tests.operators.definitions import module_folder
from tests.operators.prometheus import Prometheus

INTERVAL = 2
MONITORING: dict[str, Any] = {
    "prometheus": "plain",
    "interval_seconds": INTERVAL,
    "gpu_prices": {"Simulated-A100-SXM4-80GB": 1.5},
    "thresholds": {
        "gpu_idle_share": 0.02,
        "gpu_idle_minutes": 0.1,
        "gpu_memory_share": 0.0005,  # 41 MiB of the simulated 80 GiB
        "stalled_minutes": 0.2,
        "checkpoint_minutes": 0.3,
        "pending_minutes": 0.1,
        "memory_minutes": 0.05,
        "memory_share": 0.62,
        "exhausted_minutes": 0.05,
        "serving_minutes": 0.05,
        "latency_seconds": 1,
        "error_share": 0.0001,
        "scaled_out_minutes": 0.05,
        "restarts_per_hour": 1,
    },
}
LEARNS = {
    "epochs": 500,
    "checkpoint_every": 500,
    "step_delay": 0.1,
    "clip_norm": 5.0,
    "metrics_port": 9400,
}
# Each step multiplies the weights by -9; the loss is checked after an epoch.
DIVERGES = {
    "optimizer": "sgd",
    "learning_rate": 10,
    "weight_decay": 1,
    "batch_size": 8,
    "step_delay": 0.3,
    "metrics_port": 9400,
}
# More cores than both nodes have, even with overcommitment, so Volcano does not admit the gang.
CORES = 4 * (os.cpu_count() or 1)
SHARED_MEMORY = "/dev/shm/full"
# 240 of 256 MiB.
FILL = (
    "import os; "
    f"os.posix_fallocate(os.open('{SHARED_MEMORY}', os.O_CREAT | os.O_RDWR), 0, 240 * 2**20)"
)
SIGNAL = """
import os
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) not in (1, os.getpid()):
        os.kill(int(pid), {})
"""
STOP, CONTINUE = int(signal.SIGSTOP), int(signal.SIGCONT)
MICROSECONDS = 2_000_000


@dataclass(frozen=True)
class Watched:
    """The platform, its Prometheus, and names of the runs."""

    platform: Platform
    prometheus: Prometheus
    runs: dict[str, str]

    def firing(self, **wanted: dict[str, str]) -> set[str]:
        """Return the names of the alerts that are firing with the given label prefixes."""
        return _matching(self.prometheus.firing(), wanted)

    def await_firing(self, **wanted: dict[str, str]) -> None:
        """Wait until each of the alerts has fired, not necessarily at the same time."""
        missing = set(wanted)

        def all_have() -> bool:
            missing.difference_update(_matching(self.prometheus.fired(), wanted))
            return not missing

        try:
            await_(all_have, "all alerts")
        except AssertionError:
            raise AssertionError(f"{sorted(missing)} did not fire") from None

    def await_silence(self, **wanted: dict[str, str]) -> None:
        """Wait until none of the alerts is firing."""
        await_(lambda: not self.firing(**wanted), f"{wanted} no longer fire")

    def server(self) -> dict[str, Any]:
        """Return the pod that answers requests."""
        selector = "gpu-platform.dev/service=digits"
        found = self.platform.kubectl("get", "pods", "-n", "ml-dev", "-l", selector)["items"]
        return dict(found[0])

    def python(self, pod: str, program: str) -> None:
        """Run a program in a pod."""
        self.platform.shell(
            shlex.join(["kubectl", "exec", "-n", "ml-dev", pod, "--", "python3", "-c", program])
        )


def _matching(found: Iterator[dict[str, str]], wanted: dict[str, dict[str, str]]) -> set[str]:
    """Return the wanted alerts whose labels begin with the given values."""
    return {
        labels["alertname"]
        for labels in found
        if labels["alertname"] in wanted
        and all(
            labels.get(name, "").startswith(value)
            for name, value in wanted[labels["alertname"]].items()
        )
    }


def configure(config: dict[str, Any], served: str) -> None:
    """Configure jobs and services that each have a fault."""
    config["gpu-platform:monitoring"] |= MONITORING
    # The running jobs and services use all GPUs.
    config["gpu-platform:tenancy"]["quota"] |= {"gpus": 6, "cpu": 2 * CORES}
    jobs = config["gpu-platform:training"]["jobs"]
    # Replaced runs are deleted by the stack's next update, so that only the new ones run.
    common = {**jobs.pop("digits"), "on_change": "replace"}
    program = common["hyperparameters"]
    jobs["learning"] = {**common, "hyperparameters": {**program, **LEARNS}}
    alone = {**common, "nodes": 1}
    # Gangs in the other queue start and end constantly.
    config["gpu-platform:volcano"]["queues"]["blocked"] = {"weight": 1}
    jobs["waiting"] = {**alone, "cpu": CORES, "queue": "blocked"}
    # Pods of an Indexed Job name their queue in an annotation.
    jobs["diverging"] = {**alone, "kind": "indexed", "hyperparameters": {**program, **DIVERGES}}
    jobs["crashing"] = {
        **alone,
        "kind": "plain",
        "command": ["sh", "-c", "sleep 5; exit 1"],
        "retries": 8,
    }
    del jobs["crashing"]["hyperparameters"]
    services = config["gpu-platform:inference"]["services"]
    digits = services.pop("digits")
    services["hollow"] = {**digits, "job": "waiting"}
    services["digits"] = {**digits, "run": served, "autoscaling": {"min": 1, "max": 1}}
    del services["digits"]["job"]


@pytest.fixture(scope="module")
def watched(real: Platform) -> Iterator[Watched]:
    real.reset()
    real.hyperparameters(epochs=10)
    assert "(correct)" in real.make("up")
    served, before = real.run_name(), real.stack_file.read_text()
    prometheus.push_images(real.state)
    prometheus.namespace(real)
    try:
        real.edit(lambda config: configure(config, served))
        real.shell(UPDATE)
        started = prometheus.start(real, INTERVAL)
        runs = {key: str(run["name"]) for key, run in real.outputs()["runs"].items()}
        yield Watched(real, started, runs)
    finally:
        real.stack_file.write_text(before)
        real.shell(UPDATE)
        prometheus.stop(real)


@pytest.fixture(scope="module")
def load(watched: Watched) -> Iterator[Load]:
    """Clients of the served model, which run until the last test."""
    await_(lambda: answers(watched), "the server")
    patience = {"parameters": {"timeout": MICROSECONDS}}
    with Load(infer(watched), inference_request() | patience, 2, 0.2) as clients:
        yield clients


def infer(watched: Watched) -> str:
    return f"http://{watched.server()['status']['podIP']}:8080/v2/models/digits/infer"


def answers(watched: Watched) -> bool:
    try:
        return httpx.post(infer(watched), json=inference_request(), trust_env=False).is_success
    except (httpx.TransportError, KeyError, IndexError):
        return False


def test_prometheus_finds_all_targets(watched: Watched, load: Load) -> None:
    wanted = {f"gpu-platform-{name}" for name in ("training", "inference", "volcano", "gpus")}
    wanted |= {"kube-state-metrics", "kubelet", "cadvisor"}

    def jobs() -> set[str]:
        return {each["metric"]["job"] for each in watched.prometheus.query_series("up == 1")}

    await_(lambda: jobs() >= wanted, f"samples of every job in {sorted(wanted)}")


def test_alerts_fire_for_faults_present_at_the_start(watched: Watched, load: Load) -> None:
    runs = watched.runs
    watched.await_firing(
        QuotaExhausted={"namespace": "ml-dev"},
        LossNotFinite={"run": runs["diverging"]},
        FrequentJobRestarts={"run": runs["crashing"]},
        QueueBlocked={"queue": "blocked"},
        InferenceNotReady={"service": "hollow"},
        AutoscalerAtMaximum={"namespace": "ml-dev"},
        CheckpointTooOld={"run": runs["learning"]},
        AllocatedGpuIdle={"pod": "hollow-"},
        GpuMemoryNearlyFull={"pod": runs["learning"]},
    )


def test_gpu_series_have_labels_for_node_and_pod(watched: Watched) -> None:
    found = [each["metric"] for each in watched.prometheus.query_series("DCGM_FI_DEV_GPU_UTIL")]
    assert Counter(gpu["Hostname"] for gpu in found) == {"gpu-node-0": 4, "gpu-node-1": 4}
    assert len({gpu["UUID"] for gpu in found}) == 8
    requested = 'kube_pod_container_resource_requests{resource="nvidia_com_gpu"}'
    running = f'{requested} and on (namespace, pod) kube_pod_status_phase{{phase="Running"}} == 1'

    def owners() -> bool:
        """Return whether the kubelet and the API server agree."""
        by = "namespace, pod, container"
        has = watched.prometheus.query_series(f'count by ({by}) (DCGM_FI_DEV_GPU_UTIL{{pod!=""}})')
        wants = watched.prometheus.query_series(f"sum by ({by}) ({running})")
        return {_labels(each) for each in has} == {_labels(each) for each in wants} != set()

    await_(owners, "agreement of kubelet and API server about the owners of GPUs")


def _labels(series: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the labels and the value."""
    return (*sorted(series["metric"].items()), ("value", series["value"][1]))


def test_alert_fires_until_its_fault_is_fixed(watched: Watched, load: Load) -> None:
    learning = watched.runs["learning"]
    first, second = f"{learning}-master-0", f"{learning}-worker-0"
    server = watched.server()["metadata"]["name"]
    training = {
        "TrainingWithoutStep": {"run": learning},
        "SharedMemoryNearlyFull": {"pod": first},
        "MemoryNearLimit": {"pod": first},
        "AllocatedGpuIdle": {"pod": second},
    }
    watched.await_silence(**training)
    watched.python(second, SIGNAL.format(STOP))
    watched.python(server, SIGNAL.format(STOP))
    watched.python(first, FILL)
    serving = {"InferenceErrors": {"service": "digits"}, "InferenceSlow": {"service": "digits"}}
    watched.await_firing(**training, **serving)
    idle = {"AllocatedGpuIdle": {"pod": second}}
    await_(lambda: bool(watched.firing(**idle)), "an idle GPU of the stopped process")
    watched.python(server, SIGNAL.format(CONTINUE))
    watched.python(second, SIGNAL.format(CONTINUE))
    watched.python(first, f"import os; os.unlink('{SHARED_MEMORY}')")
    ended = {"LossNotFinite": {"run": watched.runs["diverging"]}, "QuotaExhausted": {}}
    watched.await_silence(**training, **ended)
    await_(lambda: answers(watched), "a response from the stopped server")


def test_alert_for_a_gpu_error_names_the_pod(watched: Watched, load: Load) -> None:
    pod = f"{watched.runs['learning']}-master-0"
    (series,) = watched.prometheus.query_series(f'DCGM_FI_DEV_XID_ERRORS{{pod="{pod}"}}')
    gpu = series["metric"]
    faults = Layout(Path(), watched.platform.state / "real").gpu_faults(gpu["Hostname"])
    faults.write_text(json.dumps({gpu["gpu"]: {"DCGM_FI_DEV_XID_ERRORS": 79}}))
    try:
        watched.await_firing(
            GpuXidError={"pod": pod, "Hostname": gpu["Hostname"], "err_code": "79"}
        )
    finally:
        faults.unlink()
    watched.await_silence(GpuXidError={})


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield each dashboard query with the names of its dashboard and panel."""
    settings = MonitoringSettings.model_validate(MONITORING)
    for name, spec in dashboards(settings).items():
        for panels in spec.rows.values():
            for panel in panels:
                for query in panel.queries.values():
                    yield name, panel.title, query


def test_every_query_of_the_dashboards_has_data(watched: Watched, load: Load) -> None:
    chosen = {
        "$__range": "5m",
        "$namespace": "ml-dev",
        "$run": watched.runs["learning"],
        "$service": "digits",
    }

    def empty() -> list[tuple[str, str, str]]:
        return [
            (name, title, query)
            for name, title, query in queries()
            if not watched.prometheus.numbers(
                re.sub(r"\$\w+", lambda match: chosen[match[0]], query)
            )
        ]

    assert len(list(queries())) > 40
    deadline = time.monotonic() + 300
    while left := empty():
        assert time.monotonic() < deadline, left
        time.sleep(1)


def test_runs_of_every_kind_are_counted_by_queue(watched: Watched) -> None:
    found = watched.prometheus.query_series("max_over_time(gpu_platform:run_gpus[10m])")
    queues = {each["metric"]["run"]: each["metric"].get("queue") for each in found}
    kinds = ("learning", "diverging", "crashing")
    assert {kind: queues[watched.runs[kind]] for kind in kinds} == dict.fromkeys(kinds, "research")


def test_prometheus_computes_all_rules(watched: Watched) -> None:
    groups = watched.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] != "ok"} == {}
    thresholds = MonitoringSettings().thresholds
    known = {each.name for found in alerts(thresholds).values() for each in found}
    assert known <= {rule["name"] for rule in rules}


def test_api_server_accepts_the_objects_for_the_prometheus_operator(
    watched: Watched, tmp_path: Path
) -> None:
    platform = watched.platform
    folder = module_folder(prometheus.OPERATOR, tmp_path) / "example" / "prometheus-operator-crd"
    kinds = ("podmonitors", "servicemonitors", "prometheusrules")
    files = " ".join(f"--filename={folder}/monitoring.coreos.com_{kind}.yaml" for kind in kinds)
    made = manifests(args(prometheus="operator", dcgm_exporter={"install": True}))
    ours = [each for each in made if each["apiVersion"].startswith("monitoring.coreos.com")]
    for manifest in ours:
        manifest["metadata"]["namespace"] = "default"
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(ours))
    platform.shell(
        f"kubectl apply --server-side {files} && "
        "kubectl wait --for=condition=Established --timeout=600s crd "
        + " ".join(f"{kind}.monitoring.coreos.com" for kind in kinds)
    )
    options = "--server-side --dry-run=server --validate=strict"
    output = platform.shell(f"kubectl apply {options} --filename {file}")
    assert len(output.splitlines()) == len(ours) == 6


def with_node_health(config: dict[str, Any]) -> None:
    config["gpu-platform:gpu"]["node_health"] = {
        "prometheus": f"http://prometheus.{prometheus.NAMESPACE}:9090",
        "fault_seconds": 5,
        "settle_seconds": 5,
    }


def test_a_gpu_error_cordons_its_node_until_the_gpu_is_healthy(watched: Watched) -> None:
    """Run this test last, because it evicts the run's pods from the node."""
    platform, node = watched.platform, "gpu-node-1"
    platform.edit(with_node_health)
    platform.shell(UPDATE)

    def state() -> tuple[bool, str]:
        found = platform.kubectl("get", "node", node)
        reasons = {each["type"]: each["reason"] for each in found["status"]["conditions"]}
        return found["spec"].get("unschedulable", False), reasons.get("GpuUnhealthy", "")

    faults = Layout(Path(), platform.state / "real").gpu_faults(node)
    faults.write_text(json.dumps({"0": {"DCGM_FI_DEV_XID_ERRORS": 79}}))
    try:
        await_(lambda: state() == (True, "XidError"), f"{node} is cordoned")
    finally:
        faults.unlink()
    await_(lambda: state() == (False, "GpusHealthy"), f"{node} has returned")
