"""A stack in which each job and service has a fault, with alerts that fire within seconds."""

import os
from typing import Any

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
