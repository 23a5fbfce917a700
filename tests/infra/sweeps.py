"""A stack with a sweep that tests modify."""

from typing import Any

from infra.pods import GpuNodes
from infra.settings import StackSettings, validate
from infra.sweep import Price, Sweep
from infra.training_run import TrainingJobArgs
from tests.infra.examples import TRAINING_IMAGE, good

SPACE: dict[str, Any] = {
    "learning_rate": {"min": 1e-4, "max": 1e-1, "log": True},
    "batch_size": {"min": 16, "max": 64},
    "optimizer": {"choices": ["adamw", "sgd"]},
}


def length(**changes: int) -> dict[str, Any]:
    """Return the job's hyperparameters with a training length."""
    return {"model": "digits-net", "dataset": "digits", **changes}


def values(*, job: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return the valid configuration with a sweep over its job; `changes` are sweep settings."""
    found = good()
    changed = {"retries": 5, "hyperparameters": length(epochs=9), **(job or {})}
    searched = {**found["training"]["jobs"].pop("digits"), **changed}
    served = {"digits": {"sweep": "digits", "cpu": 1, "memory": "2Gi"}}
    found["inference"]["services"] = served if changes.get("winner") == "serve" else {}
    found["images"]["workloads"]["sweeps"] = {"reference": TRAINING_IMAGE}
    found["training"]["sweeps"] = {
        "digits": {
            "job": searched,
            "space": SPACE,
            "early_stopping": {"minimum": 1, "factor": 3},
            "parallel": 2,
            "trials": 8,
            "budget": {"gpu_hours": 10},
            **changes,
        }
    }
    return found


def stack_settings(**changes: Any) -> StackSettings:
    """Return the validated settings of the stack."""
    return validate(values(**changes))


def sweep(settings: StackSettings | None = None, price: float | None = None) -> Sweep:
    """Return the sweep of a stack with the price of a GPU-hour."""
    searched = (settings or stack_settings()).training.sweeps["digits"]
    args = TrainingJobArgs(
        key="digits",
        job=searched.job,
        namespace="ml",
        image=TRAINING_IMAGE,
        image_identity=TRAINING_IMAGE,
        gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
        claims={"checkpoints": "ckpt", "datasets": "data"},
    )
    return Sweep(
        settings=searched,
        args=args,
        labels={"team": "vision"},
        annotations={},
        price=None if price is None else Price(gpu_hour=price, currency="USD"),
    )
