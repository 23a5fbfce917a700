"""What Volcano does with this stack's queues and jobs: three simulated nodes of eight GPUs."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.settings.scheduler import SchedulerSettings
from tests.cluster.platform import Platform, await_, copy_checkout
from tests.cluster.scheduling import NAMESPACE, Scheduling, stack, surroundings

GANGS = {"preempt": "gangs", "reclaim": "gangs"}
VOLCANO: dict[str, Any] = {
    "scheduler": GANGS,
    "queues": {
        "vision": {"weight": 2, "capability": {"nvidia.com/gpu": 24}},
        "language": {"weight": 1, "capability": {"nvidia.com/gpu": 24}},
        "small": {"capability": {"nvidia.com/gpu": 8}},
    },
    "priority_classes": {"batch": {"value": 1000}, "urgent": {"value": 2000}},
}
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduling]:
    """Three nodes and the stack's queues."""
    folder = tmp_path_factory.mktemp("scheduling")
    platform = Platform(copy_checkout(folder / "checkout"), folder / "state", "simulated")
    made = Scheduling(platform, nodes=3)
    try:
        made.apply(*surroundings(stack({}, **VOLCANO)))
        yield made
    finally:
        made.devcluster("down", "--purge")


@pytest.fixture
def volcano(cluster: Scheduling) -> Iterator[Scheduling]:
    """The cluster without jobs, whose scheduler takes whole gangs away."""
    cluster.configure(SchedulerSettings.model_validate(GANGS))
    yield cluster
    cluster.clear()


def placed(volcano: Scheduling, **pods: int) -> None:
    """Waits until exactly these pods have nodes, by job, and sees that it stays so."""
    wanted = {name.replace("_", "-"): count for name, count in pods.items()}
    await_(lambda: volcano.placed() == wanted, PATIENCE, f"{wanted} placed")
    for _ in range(3):
        time.sleep(0.5)
        assert volcano.placed() == wanted


def watched(volcano: Scheduling, until: Callable[[], bool], what: str) -> list[dict[str, int]]:
    """The pods with nodes at every look until something holds."""
    seen = []

    def look() -> bool:
        seen.append(dict(volcano.placed()))
        return until()

    await_(look, PATIENCE, what)
    return seen


def whole(seen: list[dict[str, int]], job: str, size: int) -> bool:
    """Whether no part of a gang had nodes for longer than it takes to bind its pods."""
    partial = [look.get(job, 0) not in (0, size) for look in seen]
    return not any(first and then for first, then in itertools.pairwise(partial))


def test_two_queues_share_by_weight_and_the_rest_waits_with_the_reason_shown(
    volcano: Scheduling,
) -> None:
    jobs = {f"{queue}-{n}": {"queue": queue} for queue in ("vision", "language") for n in range(3)}
    volcano.submit(stack(jobs, **VOLCANO), *jobs)
    await_(lambda: volcano.placed().total() == 3, PATIENCE, "three pods with nodes")
    time.sleep(2)
    queues = [name.partition("-")[0] for name in volcano.placed()]
    assert sorted(queues) == ["language", "vision", "vision"]
    status = volcano.platform.make("status")
    assert status.count("0 of 1 pods have a node, needs 1 at once") == 3
    assert status.count("asks for 8 nvidia.com/gpu, and 0 of 24 are free") == 3


def test_a_queue_takes_its_share_back_when_its_owner_returns(volcano: Scheduling) -> None:
    guests = {f"guest-{n}": {"queue": "language"} for n in range(3)}
    jobs = stack(guests | {"owner": {"queue": "vision", "nodes": 2}}, **VOLCANO)
    volcano.submit(jobs, *guests)
    placed(volcano, guest_0=1, guest_1=1, guest_2=1)
    volcano.submit(jobs, "owner")
    seen = watched(volcano, lambda: volcano.placed()["owner"] == 2, "the owner's gang with nodes")
    assert whole(seen, "owner", 2)
    await_(lambda: volcano.placed().total() == 3, PATIENCE, "one guest left")
    evicted = volcano.evicted("reclaim")
    assert len(evicted) >= 2
    assert evicted <= guests.keys()
    assert sorted(volcano.phase(job) for job in guests) == ["Pending", "Pending", "Running"]


def test_an_urgent_job_ends_a_whole_gang_which_returns_as_a_whole(volcano: Scheduling) -> None:
    jobs = stack(
        {
            "long": {"queue": "vision", "nodes": 3, "priority_class": "batch"},
            "equal": {"queue": "vision", "priority_class": "batch"},
            "urgent": {"queue": "vision", "priority_class": "urgent"},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "long")
    placed(volcano, long=3)
    volcano.submit(jobs, "equal")
    placed(volcano, long=3)
    volcano.delete("equal")
    volcano.submit(jobs, "urgent")
    placed(volcano, urgent=1)
    assert "long" in volcano.evicted("preempt")
    assert "ml/long in queue vision: 0 of 3 pods have a node, needs 3 at once" in (
        volcano.devcluster("status")
    )
    volcano.delete("urgent")
    seen = watched(volcano, lambda: volcano.placed()["long"] == 3, "the gang with nodes again")
    assert whole(seen, "long", 3)
    assert volcano.job("long")["status"]["retryCount"] == 1


def test_an_elastic_job_gives_its_surplus_and_gets_it_back(volcano: Scheduling) -> None:
    volcano.configure(SchedulerSettings(preempt="surplus"))
    jobs = stack(
        {
            "elastic": {"queue": "vision", "nodes": 3, "min_nodes": 1, "priority_class": "batch"},
            "urgent": {"queue": "vision", "nodes": 2, "priority_class": "urgent"},
            "greedy": {"queue": "vision", "nodes": 3, "priority_class": "urgent"},
        },
        **VOLCANO,
    )
    volcano.submit(jobs, "elastic")
    placed(volcano, elastic=3)
    volcano.submit(jobs, "greedy")
    placed(volcano, elastic=3)
    volcano.delete("greedy")
    volcano.submit(jobs, "urgent")
    placed(volcano, elastic=1, urgent=2)
    assert volcano.phase("elastic") == "Running"
    status = volcano.devcluster("status")
    assert "ml/elastic in queue vision: 1 of 3 pods have a node, runs, and has room" in status
    volcano.delete("urgent")
    placed(volcano, elastic=3)
    assert "retryCount" not in volcano.job("elastic")["status"]


def test_steps_follow_each_other_and_none_begins_early(volcano: Scheduling) -> None:
    steps = {
        "prepare": {"command": ["./prepare"]},
        "evaluate": {"command": ["./evaluate"], "after": ["train"], "gpus": 1},
    }
    jobs = stack({"flow": {"queue": "vision", "steps": steps, "after": ["prepare"]}}, **VOLCANO)
    volcano.submit(jobs, "flow")
    for step in ("prepare", "train", "evaluate"):
        name = f"flow-flow-{step}"
        placed(volcano, **{name: 1})
        volcano.finish(volcano.pods(name)[0])
    last = "flow-flow-evaluate"
    await_(lambda: volcano.phase(last) == "Completed", PATIENCE, "the end of the flow")


def test_a_suspended_job_leaves_its_place_to_others_and_goes_on_later(volcano: Scheduling) -> None:
    two = {name: {"queue": "vision", "nodes": 3} for name in ("first", "second")}
    jobs = stack(two, **VOLCANO)
    volcano.submit(jobs, "first")
    placed(volcano, first=3)
    volcano.submit(jobs, "second")
    placed(volcano, first=3)
    volcano.command("first", "AbortJob")
    placed(volcano, second=3)
    assert volcano.phase("first") == "Aborted"
    assert "ml/first: suspended" in volcano.devcluster("status")
    volcano.command("first", "ResumeJob")
    placed(volcano, second=3)
    volcano.delete("second")
    placed(volcano, first=3)


def test_a_full_queue_and_a_place_that_does_not_exist_are_told(volcano: Scheduling) -> None:
    jobs = {
        "full": {"queue": "small"},
        "waits": {"queue": "small"},
        "lost": {"queue": "vision", "gpus_per_node": 1, "node_selector": {"rack": "none"}},
    }
    settings = stack(jobs, **VOLCANO)
    volcano.submit(settings, "full")
    placed(volcano, full=1)
    volcano.submit(settings, "waits", "lost")
    told = "didn't match Pod's node affinity/selector"
    await_(lambda: told in volcano.devcluster("status"), PATIENCE, told)
    status = volcano.devcluster("status")
    assert "ml/waits in queue small: 0 of 1 pods have a node, needs 1 at once" in status
    assert "queue small is full: it uses 8 of 8 nvidia.com/gpu" in status
    assert f"{NAMESPACE}/full" not in status
