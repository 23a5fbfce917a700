"""An environment for a user's cluster, adapted to the embedded cluster."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from devcluster.spec import Kind, cluster_spec
from infra.settings.volcano import SchedulerSettings
from infra.volcano import scheduler_configuration
from simulation import nodes as simulated_nodes
from tests.cluster.platform import Platform

SPEC = cluster_spec(Kind.SIMULATED, 0)
REFERENCE = f"registry.example.com/gpu-platform/workload@sha256:{'0' * 64}"


def adapt_stack_file(checkout: Path, stack: str) -> None:
    """Adapt a stack's file to the embedded cluster: context, installed components and volumes."""
    file = checkout / f"Pulumi.{stack}.yaml"
    document = yaml.safe_load(file.read_text())
    config = document["config"]
    config["gpu-platform:cluster"]["context"] = SPEC.context
    config["gpu-platform:gpu"]["provider"] = "existing"
    config["gpu-platform:volcano"]["install"] = False
    config["gpu-platform:volcano"].pop("scheduler", None)
    config["gpu-platform:storage"] |= _static(config["gpu-platform:storage"]["claims"])
    for image in config["gpu-platform:images"]["workloads"].values():
        if image.pop("build", None):
            image["reference"] = REFERENCE
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    pack = checkout / "policies" / "config" / f"{stack}.json"
    policies = json.loads(pack.read_text())
    # There is no storage driver, so the volumes are directories on the nodes.
    policies["systemWorkloads"]["workloads"].append("*/PersistentVolume/volume-*")
    pack.write_text(json.dumps(policies))


def configure_scheduler(platform: Platform, stack: str) -> None:
    """Configure the embedded scheduler as the stack would configure its own release."""
    document = yaml.safe_load((platform.checkout / f"Pulumi.{stack}.yaml").read_text())
    written = document["config"]["gpu-platform:volcano"]["scheduler"]
    text = scheduler_configuration(SchedulerSettings.model_validate(written), hierarchical=False)
    file = platform.state / "simulated" / "volcano" / "scheduler.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _static(claims: dict[str, Any]) -> dict[str, Any]:
    """Return the claims bound to static volumes, because there is no storage driver."""
    volumes = {
        f"volume-{key}": {
            "capacity": claim["size"],
            "access_modes": ["ReadWriteMany"],
            "storage_class": claim["storage_class"],
            "local": {"path": f"/shared/{key}", "nodes": {"type": ["kwok"]}},
        }
        for key, claim in claims.items()
    }
    bound = {key: {**claim, "volume": f"volume-{key}"} for key, claim in claims.items()}
    return {"volumes": volumes, "claims": bound}


def add_nodes(platform: Platform, numbers: range, product: str, **devices: str) -> None:
    """Add simulated nodes, each with eight GPUs of a product, and wait until they are ready."""
    nodes = [simulated_nodes.manifest(n, product) for n in numbers]
    for node in nodes:
        amounts = {**simulated_nodes.CAPACITY, **devices}
        node["status"] = {"capacity": amounts, "allocatable": amounts}
    file = platform.checkout / "nodes.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    names = " ".join(f"node/simulated-{number}" for number in numbers)
    platform.shell(
        f"kubectl apply --server-side --force-conflicts --filename={shlex.quote(str(file))} && "
        f"kubectl wait --for=condition=Ready --timeout=600s {names}"
    )
