"""A snapshot of three nodes with eight GPUs, two running and two pending gangs."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gitops.forecast.state import Gang, Node, PodShape, PriorityClass, Queue, State
from infra.settings.volcano import SchedulerSettings
from infra.volcano import scheduler_configuration

GPU = "nvidia.com/gpu"
TAKEN = datetime(2026, 1, 1, 10, tzinfo=UTC)
ALLOCATABLE = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: "8"}
GANGS = SchedulerSettings.model_validate({"preempt": "gangs", "reclaim": "gangs"})


def gang(name: str, count: int, gpus: int, *nodes: str, hour: int, **more: Any) -> Gang:
    shape = PodShape(count=count, requests={GPU: str(gpus), "cpu": "1"}, nodes=list(nodes))
    return Gang(
        namespace="ml",
        name=name,
        state="running" if nodes else "pending",
        queue="vision",
        priority_class="batch",
        priority=1000,
        minimum=count,
        created=TAKEN.replace(hour=hour),
        started=TAKEN.replace(hour=hour) if nodes else None,
        pods=[shape],
        **more,
    )


def state() -> State:
    """Return a snapshot.

    Gang `a` saved a checkpoint 15 minutes ago and ends in an hour; `b` ends in 10 minutes.
    """
    saved = TAKEN - timedelta(minutes=15)
    return State(
        taken=TAKEN,
        volcano="v1.14.1",
        scheduler_configuration=scheduler_configuration(GANGS, hierarchical=False),
        nodes=[Node(name=f"gpu-{n}", allocatable=ALLOCATABLE) for n in range(3)],
        queues=[Queue(name="vision", spec={"weight": 1}), Queue(name="root")],
        priority_classes=[
            PriorityClass(name="batch", value=1000),
            PriorityClass(name="urgent", value=2000),
        ],
        gangs=[
            gang("a", 2, 8, "gpu-0", "gpu-1", hour=7, deadline_seconds=4 * 3600, saved=saved),
            gang("b", 1, 6, "gpu-2", hour=8, left_seconds=600),
            gang("large", 2, 8, hour=9, deadline_seconds=3600),
            gang("small", 1, 2, hour=9, deadline_seconds=3600),
        ],
    )


JOB = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: urgent, namespace: ml}
spec:
  queue: vision
  priorityClassName: urgent
  minAvailable: 2
  tasks:
    - name: worker
      replicas: 2
      template:
        spec:
          activeDeadlineSeconds: 1800
          containers:
            - name: main
              resources: {limits: {nvidia.com/gpu: 8}}
"""
