"""An inference service from the valid configuration that tests modify."""

from typing import Any

from infra.inference_service import build, build_canary, routes
from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.serving.description import InferenceServiceArgs
from infra.settings import validate
from tests.infra.examples import changed, good, problems

DIGEST = "d" * 64
GATEWAY = {"gateway": {"name": "public", "namespace": "gateways"}}
CANARY = {"weight": 20, "run": "digits-4567cdef"}


def serving(**changes: Any) -> InferenceServiceArgs:
    """Return the service `digits` with changed settings. `job=None` omits the job."""
    values = good()
    service = values["inference"]["services"]["digits"] | changes
    values["inference"]["services"]["digits"] = {
        name: value for name, value in service.items() if value is not None
    }
    settings = validate(values).inference.services["digits"]
    return InferenceServiceArgs(
        key="digits",
        service=settings,
        run="digits-0123abcd" if settings.job else settings.run,
        namespace="ml",
        image="image",
        canary_image="other-image",
        rollback_image="recorder-image",
        gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
        claims={"checkpoints": "ckpt", "datasets": "data"},
    )


def objects(args: InferenceServiceArgs) -> dict[str, Manifest]:
    """Return the stable version's objects and the route by kind."""
    return {manifest["kind"]: manifest for manifest in [*build(args), *routes(args)]}


def canary_objects(args: InferenceServiceArgs) -> dict[str, Manifest]:
    """Return the canary's objects by kind."""
    return {manifest["kind"]: manifest for manifest in build_canary(args)}


def pod(deployment: Manifest) -> Manifest:
    """Return the pod specification of a Deployment."""
    found: Manifest = deployment["spec"]["template"]["spec"]
    return found


def container(args: InferenceServiceArgs) -> Manifest:
    """Return the server container of the stable version."""
    found: Manifest = pod(objects(args)["Deployment"])["containers"][0]
    return found


def environment(found: Manifest) -> dict[str, Any]:
    """Return a container's variables as values or references."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found["env"]}


def service_problems(service: dict[str, Any]) -> str:
    """Return the problems of the base configuration's service with these settings."""
    values = good()["inference"]["services"]["digits"] | service
    service_settings = {name: value for name, value in values.items() if value is not None}
    return "\n".join(problems(changed("inference.services.digits", service_settings)))
