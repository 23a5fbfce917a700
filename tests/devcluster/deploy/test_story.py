"""What the story that `make up` tells ends with."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from devcluster.deploy import story
from devcluster.deploy.runs import Progress, Run
from devcluster.deploy.story import STACKS, Told
from devcluster.lifecycle import Cluster
from devcluster.paths import CHECKOUT, Layout
from devcluster.progress import Reporter
from devcluster.spec import Kind, cluster_spec
from devcluster.toolchain import Toolchain
from tests.devcluster.programs import Install


@pytest.fixture
def cluster(layout: Layout, tmp_path: Path, install: Install) -> Cluster:
    bin_ = install("kubectl", f"cat {tmp_path}/queue").parent
    tools = Toolchain(bin_, tmp_path, tmp_path, tmp_path, installed=())
    return Cluster(cluster_spec(Kind.REAL), layout, tools)


def queue(tmp_path: Path, **status: Any) -> None:
    found = {"spec": {"capability": {"nvidia.com/gpu": 4}}, "status": status}
    (tmp_path / "queue").write_text(json.dumps(found))


def test_every_kind_of_cluster_has_a_stack_in_the_checkout():
    assert set(STACKS) == set(Kind)
    for name in STACKS.values():
        assert (CHECKOUT / f"Pulumi.{name}.yaml").exists()
        assert (CHECKOUT / "policies" / "config" / f"{name}.json").exists()


def test_a_result_is_told_of_a_finished_run_alone():
    finished = {"event": "finished", "accuracy": 0.9712, "seconds": 12.34}
    assert Progress("Completed", finished).result == "accuracy 97.12% in 12.3 s"
    assert Progress("Completed", {}).result == ""
    # A program of the user's own.
    assert Progress("Completed", {"event": "finished", "step": 20}).result == ""
    assert str(Progress("Running", {"event": "epoch", "epoch": "1/2"})) == "Running"


def test_the_summary_names_queues_runs_and_predictions(cluster: Cluster, tmp_path: Path):
    queue(tmp_path, state="Open", running=1, pending=0)
    told = Told(
        changes={"create": 12},
        outputs={"queues": ["research"]},
        runs=[(Run("digits", "digits-1", "volcano", "ml", "research", 2, 1), "Completed", "")],
        predictions=[("digits", "http://10.250.128.77:8080/v2/models/digits", "a 3")],
    )
    console = Console(file=io.StringIO(), width=120)
    story._summarise(cluster, Reporter(console), told)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in (
        "stack dev",
        "12 created",
        "research: Open, 4 GPUs, 1 running",
        "digits-1 (2 x 1 GPU, volcano)",
        "Completed",
        "digits: http://10.250.128.77:8080/v2/models/digits",
    ):
        assert part in text, text


def test_a_queue_without_a_limit_is_told_as_one(cluster: Cluster, tmp_path: Path):
    (tmp_path / "queue").write_text('{"spec": {}}')
    assert story._queue_state(cluster, "default") == "Unknown, no limit of GPUs"


def test_a_queue_that_is_not_there_is_told(cluster: Cluster):
    assert story._queue_state(cluster, "research") == "not found"
