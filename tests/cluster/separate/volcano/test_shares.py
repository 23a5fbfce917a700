"""Shares of queues: by weight, by deserved amounts, and by guarantees."""

import time
from collections import Counter
from typing import Any

import pytest

from tests.cluster.gangs import VOLCANO, never_partial, placed, poll_placements
from tests.cluster.platform import await_
from tests.cluster.scheduling import NAMESPACE, Scheduling, stack


def test_queues_share_by_weight_and_waiting_jobs_show_the_reason(volcano: Scheduling) -> None:
    jobs = {f"{queue}-{n}": {"queue": queue} for queue in ("vision", "language") for n in range(3)}
    volcano.submit(stack(jobs, **VOLCANO), *jobs)
    # The queue whose jobs arrive first uses all nodes until the other queue reclaims its share.
    _remain(volcano, vision=2, language=1)
    waiting = "0 of 1 pods are scheduled (minimum to start: 1)"
    await_(lambda: volcano.devcluster("status").count(waiting) == 3, "three jobs wait")
    status = volcano.platform.make("status")
    assert status.count(waiting) == 3
    assert status.count("requests 8 nvidia.com/gpu, but only 0 of 24 are free") == 3


def test_queue_reclaims_its_share(volcano: Scheduling) -> None:
    guests = {f"guest-{n}": {"queue": "language"} for n in range(3)}
    jobs = stack(guests | {"owner": {"queue": "vision", "nodes": 2}}, **VOLCANO)
    volcano.submit(jobs, *guests)
    placed(volcano, guest_0=1, guest_1=1, guest_2=1)
    volcano.submit(jobs, "owner")
    seen = poll_placements(
        volcano, lambda: volcano.placed()["owner"] == 2, "the owner's gang with nodes"
    )
    assert never_partial(seen, "owner", 2)
    await_(lambda: volcano.placed().total() == 3, "one guest left")
    await_(lambda: len(volcano.evicted("reclaim")) >= 2, "the events of two guests")
    assert volcano.evicted("reclaim") <= guests.keys()
    phases = ["Pending", "Pending", "Running"]
    await_(lambda: sorted(map(volcano.phase, guests)) == phases, f"guests that are {phases}")


def _remain(volcano: Scheduling, **pods: int) -> None:
    """Wait until exactly these pods have nodes, by the prefix of their jobs, and remain there."""

    def shares() -> Counter[str]:
        return Counter(job.partition("-")[0] for job in volcano.placed().elements())

    await_(lambda: shares() == pods, f"{pods} with nodes")
    time.sleep(2)
    assert shares() == pods


def amounts(gpus: int) -> dict[str, Any]:
    """Return GPUs with CPU and memory, without which queues before Volcano 1.15 reclaim nothing."""
    return {"cpu": 64, "memory": "512Gi", "nvidia.com/gpu": gpus}


def test_queue_reclaims_only_its_deserved_amount(volcano: Scheduling) -> None:
    """With `capacity`, shares equal the configured amounts regardless of the other queues."""
    queues = {"large": {"deserved": amounts(16)}, "little": {"deserved": amounts(8)}}
    scheduler = {"share": "capacity", "reclaim": "gangs"}
    tenants = {f"tenant-{n}": {"queue": "little"} for n in range(3)}
    owners = {f"owner-{n}": {"queue": "large"} for n in range(3)}
    jobs = stack(tenants | owners, scheduler=scheduler, queues=queues)
    with volcano.queues(jobs):
        volcano.submit(jobs, *tenants)
        placed(volcano, tenant_0=1, tenant_1=1, tenant_2=1)
        volcano.submit(jobs, *owners)
        _remain(volcano, owner=2, tenant=1)
        await_(lambda: len(volcano.evicted("reclaim") & tenants.keys()) >= 2, "two events")
        evicted = volcano.evicted("reclaim")
        assert len(evicted & tenants.keys()) == 2
        assert not evicted & owners.keys()


@pytest.mark.parametrize("share", ["proportion", "capacity"])
def test_guaranteed_resources_are_kept_free_for_a_queue_without_jobs(
    volcano: Scheduling, share: str
) -> None:
    queues = {"others": {}, "kept": {"guarantee": {"nvidia.com/gpu": 8}}}
    guests = {f"guest-{n}": {"queue": "others"} for n in range(3)}
    jobs = stack(guests | {"late": {"queue": "kept"}}, scheduler={"share": share}, queues=queues)
    with volcano.queues(jobs):
        volcano.submit(jobs, *guests)
        await_(lambda: volcano.placed().total() == 2, "two guests with nodes")
        time.sleep(3)
        assert volcano.placed().total() == 2
        volcano.submit(jobs, "late")
        await_(lambda: volcano.placed()["late"] == 1, "the queue's own job with a node")
        assert volcano.placed().total() == 3


def test_full_queue_and_unmatched_node_selector_are_reported(volcano: Scheduling) -> None:
    jobs = {
        "full": {"queue": "small"},
        "waits": {"queue": "small"},
        "lost": {"queue": "vision", "gpus_per_node": 1, "node_selector": {"rack": "none"}},
    }
    settings = stack(jobs, **VOLCANO)
    volcano.submit(settings, "full")
    placed(volcano, full=1)
    volcano.submit(settings, "waits", "lost")
    reasons = (
        "didn't match Pod's node affinity/selector",
        "ml/waits in queue small: 0 of 1 pods are scheduled (minimum to start: 1)",
        "queue small is full: it uses 8 of 8 nvidia.com/gpu",
    )
    status: list[str] = []

    def all_reported() -> bool:
        status[:] = [volcano.devcluster("status")]
        return all(reason in status[0] for reason in reasons)

    await_(all_reported, f"{reasons} in the status")
    assert f"{NAMESPACE}/full" not in status[0]
