"""The summary table that `make up` prints at the end."""

import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from devcluster.deploy import predict, up
from devcluster.deploy.predict import NoPredictionError, Prediction
from devcluster.deploy.runs import Run, describe_result
from devcluster.deploy.up import STACKS, Summary
from devcluster.lifecycle import Cluster
from devcluster.paths import CHECKOUT, Layout
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import Toolchain
from gitops.runs.progress import Progress
from kube.kinds.record import State
from tests.devcluster.conftest import Install
from tests.gitops import plans


@pytest.fixture
def cluster(layout: Layout, tmp_path: Path, install: Install) -> Cluster:
    bin_ = install("kubectl", f"cat {tmp_path}/queue").parent
    tools = Toolchain(bin_, tmp_path, tmp_path, tmp_path, installed=())
    return Cluster(cluster_spec(Kind.REAL), layout, tools)


def test_early_preview_is_stopped_if_the_start_fails(cluster: Cluster, install: Install) -> None:
    install("docker", "exit 0")
    state = """echo '{"deployment": {}}'"""
    install("pulumi", f'case "$1" in preview) exec sleep 60;; *) {state};; esac')
    with up.Deployment(Reporter(Console(file=io.StringIO()))) as deployment:
        deployment.prepare(cluster)
        _, preview = deployment.begin(cluster)
        assert preview.process.poll() is None
    assert preview.process.returncode == -signal.SIGTERM


def test_stack_is_selected_only_once(cluster: Cluster, tmp_path: Path, install: Install) -> None:
    install("docker", "exit 0")
    calls = tmp_path / "calls"
    state = """echo '{"deployment": {}}'"""
    install(
        "pulumi",
        f'echo "$1 $2" >> {calls}; case "$1" in preview) exec sleep 60;; *) {state};; esac',
    )
    with up.Deployment(Reporter(Console(file=io.StringIO()))) as deployment:
        deployment.prepare(cluster)
        deployment.begin(cluster)
    assert calls.read_text().count("stack select") == 1


def test_objects_that_a_reverted_replacement_deletes_are_restored(
    cluster: Cluster, tmp_path: Path, install: Install
) -> None:
    """An earlier update failed after it had replaced the object."""
    install("docker", "exit 0")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": plans.metadata("default-deny"),
    }
    other = {**policy, "metadata": {**policy["metadata"], "namespace": "other"}}
    replaced = plans.step("replace", other, policy, keys=["metadata.namespace"])
    summary = {"summaryEvent": {"result": "succeeded", "resourceChanges": {"replace": 1}}}
    calls, log = tmp_path / "calls", tmp_path / "log"
    install(
        "pulumi",
        f"""echo "$*" >> {calls}
        case "$1" in
          preview) cp {log} {cluster.layout.logs}/pulumi-preview.events;;
          *) echo '{{"deployment": {{}}}}';;
        esac""",
    )
    for pending, updates in ((policy, 2), (other, 1)):
        events = [replaced, plans.step("delete-replaced", pending), summary]
        log.write_text("".join(json.dumps(event) + "\n" for event in events))
        calls.unlink(missing_ok=True)
        with up.Deployment(Reporter(Console(file=io.StringIO()))) as deployment:
            deployment.finish(cluster, Summary())
        made = [line for line in calls.read_text().splitlines() if line.startswith("up ")]
        assert len(made) == updates
        assert ["--refresh" in line for line in made] == [False, True][:updates]


def put_queue(tmp_path: Path, gpus: int = 4, **status: Any) -> None:
    found = {"spec": {"capability": {"nvidia.com/gpu": gpus}}, "status": status}
    (tmp_path / "queue").write_text(json.dumps(found))


def printed(cluster: Cluster, summary: Summary) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(up.render(cluster, summary))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_checkout_has_a_stack_for_every_kind_of_cluster() -> None:
    assert set(STACKS) == set(Kind)
    for name in STACKS.values():
        assert (CHECKOUT / f"Pulumi.{name}.yaml").exists()
        assert (CHECKOUT / "policies" / "config" / f"{name}.json").exists()


def test_summary_lists_queues_runs_and_predictions(cluster: Cluster, tmp_path: Path) -> None:
    put_queue(tmp_path, state="Open", running=1, pending=0)
    summary = Summary(
        changes={"create": 12},
        outputs={"queues": ["research"]},
        runs=[(Run("digits", "digits-1", "volcano", "ml", "research", 2, 1), "succeeded", "")],
        services=["digits: http://10.250.128.77:8080/v2/models/digits\na 3"],
    )
    text = printed(cluster, summary)
    for part in (
        "stack dev",
        "12 created",
        "research: Open, 4 GPUs, 1 running",
        "digits-1 (2 x 1 GPU, volcano)",
        "succeeded",
        "digits: http://10.250.128.77:8080/v2/models/digits",
    ):
        assert part in text, text


def test_service_of_a_sweep_is_awaited_until_it_serves_the_winner(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the service's model changes, its pods serve the model of an earlier run."""
    service = {"model": "digits", "namespace": "ml", "sweep": "digits", "url": "http://digits"}
    summary = Summary(outputs={"inference": {"digits": service}})
    awaited: list[str | None] = []

    def wait_ready(url: str, model: str, run: str | None, report: object) -> dict[str, Any]:
        awaited.append(run)
        return {"versions": ["1"], "parameters": {"run": run}}

    monkeypatch.setattr(up, "wait_for_sweep", lambda *_: "digits-1")
    monkeypatch.setattr(predict, "service_url", lambda *_: "http://digits")
    monkeypatch.setattr(predict, "wait_ready", wait_ready)
    monkeypatch.setattr(predict, "predict", lambda *_: Prediction(8, 8))
    assert up._serve(cluster, Reporter(), summary)
    assert awaited == ["digits-1"]


def test_readme_sample_matches_the_output_of_make_up(cluster: Cluster, tmp_path: Path) -> None:
    sample = re.search(r"┌.*?┘", (CHECKOUT / "README.md").read_text(), re.DOTALL)
    assert sample is not None
    digest = re.search(r"sha256 ([0-9a-f]{64})", sample[0])
    assert digest is not None
    put_queue(tmp_path, state="Open", gpus=8)
    run = Run("digits", "digits-d1142a21", "volcano", "ml-dev", "research", 2, 1)
    finished = Progress(accuracy=0.9806, seconds=2.9)
    summary = Summary(
        changes={"create": 51},
        outputs={"queues": ["research"]},
        runs=[(run, str(State.SUCCEEDED), describe_result(finished))],
        services=[
            up.describe_service(
                "digits",
                "http://10.250.131.242:8080/v2/models/digits",
                {"versions": [digest[1][:12]], "parameters": {"sha256": digest[1]}},
                Prediction(label=8, predicted=8),
            )
        ],
    )
    assert sample[0] in printed(cluster, summary)


def test_service_without_a_prediction_is_listed_with_the_reason() -> None:
    reason = NoPredictionError("the runtime is vllm")
    text = up.describe_service("chat", "http://chat.ml:8000", None, reason)
    assert text == "chat: http://chat.ml:8000\nno first prediction: the runtime is vllm"


def test_an_unlimited_queue_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "queue").write_text('{"spec": {}}')
    assert up._queue_state(cluster, "default") == "Unknown, no limit on GPUs"


def test_a_missing_queue_is_reported(cluster: Cluster) -> None:
    assert up._queue_state(cluster, "research") == "not found"
