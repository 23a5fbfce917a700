"""The outputs of a platform stack, and the jobs and services that it supports."""

import asyncio
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import MockResourceArgs, set_mocks

from gpu_platform import Platform, PlatformError, TrainingJobSettings
from infra.settings.inference.service import InferenceServiceSettings
from tests.infra.conftest import LOOP, Engine
from tests.infra.examples import INFERENCE_IMAGE, TRAINING_IMAGE

STACK = "organization/gpu-platform/prod"
ROLLBACK = {"prometheus": "http://prometheus.monitoring:9090"}
OUTPUTS: dict[str, Any] = {
    "namespace": "ml",
    "queues": ["research", "vision"],
    "claims": {"checkpoints": "shared-checkpoints"},
    "gpuNodes": {
        "resource": "nvidia.com/gpu",
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "runtimeClass": "nvidia",
    },
    "images": {"training": TRAINING_IMAGE},
    # Pulumi reads all numbers as 2.0.
    "runs": {
        "digits": {
            "name": "digits-0123abcd",
            "kind": "volcano",
            "namespace": "ml",
            "queue": "research",
            "nodes": 2.0,
            "gpusPerNode": 8.0,
        }
    },
    "inference": {},
    "of a later version": 1,
}
JOB: dict[str, Any] = {"queue": "vision", "cpu": "1", "memory": "4Gi", "command": ["./run"]}


def job(**changed: Any) -> TrainingJobSettings:
    return TrainingJobSettings.model_validate({**JOB, **changed})


def test_job_uses_the_platforms_namespace_claims_and_gpus() -> None:
    placed = Platform.of(STACK, OUTPUTS).training_job("digits", job(), image=TRAINING_IMAGE)
    assert placed.namespace == "ml"
    assert placed.claims == {"checkpoints": "shared-checkpoints"}
    assert placed.gpu_nodes.node_selector == {"pool": "gpu"}
    assert placed.gpu_nodes.tolerations == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert placed.gpu_nodes.runtime_class == "nvidia"
    assert placed.image_identity == TRAINING_IMAGE


async def test_built_image_requires_an_identity() -> None:
    platform, image = Platform.of(STACK, OUTPUTS), pulumi.Output.from_input(TRAINING_IMAGE)
    placed = platform.training_job("digits", job(), image=image, image_identity="sources:1")
    assert placed.image is image
    assert placed.image_identity == "sources:1"
    with pytest.raises(PlatformError, match="or image_identity"):
        platform.training_job("digits", job(), image=image)
    served = platform.inference_service("digits", service(run="digits-0123abcd"), image=image)
    assert served.image is image


def read(uid: str, engine: type[Engine] = Engine, **options: Any) -> list[Platform]:
    """Read the platform of a cluster with this UID, from a program that reaches `0a1b2c3d`."""
    cluster = {"uid": uid, "identifier": "prod.example.com"}
    asyncio.set_event_loop(LOOP)
    set_mocks(engine({**OUTPUTS, "cluster": cluster}), project="team", stack="test")
    found: list[Platform] = []

    async def program() -> None:
        found.append(await Platform.read(STACK, **options))

    pulumi.runtime.test(program)()
    return found


def test_platform_contains_the_identity_of_its_cluster() -> None:
    (platform,) = read(Engine.uid)
    assert platform.cluster_uid == Engine.uid
    assert Platform.of(STACK, OUTPUTS).cluster_uid is None


def test_provider_for_another_cluster_is_rejected() -> None:
    with pytest.raises(PlatformError) as found:
        read("ffffffff")
    assert str(found.value) == (
        f"Stack {STACK!r} is the platform of cluster ffffffff, but this program deploys to cluster "
        "0a1b2c3d: pass a provider for the platform's cluster, or correct "
        "kubernetes:context. A cluster is identified by the UID of its kube-system namespace."
    )


class Renderer(Engine):
    """An engine whose provider renders manifests and therefore reads no objects."""

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        name, outputs = super().new_resource(args)
        return name, {} if args.name.endswith("kube-system") else outputs


def test_provider_that_renders_manifests_skips_the_cluster_check() -> None:
    (platform,) = read("ffffffff", engine=Renderer)
    assert platform.cluster_uid == "ffffffff"


def test_cluster_check_can_be_disabled() -> None:
    (platform,) = read("ffffffff", check_cluster=False)
    assert platform.cluster_uid == "ffffffff"


def test_error_for_another_projects_stack_lists_the_missing_outputs() -> None:
    values = {key: value for key, value in OUTPUTS.items() if key != "gpuNodes"}
    with pytest.raises(PlatformError, match="its output gpuNodes is missing") as found:
        Platform.of(STACK, {**values, "queues": "research"})
    assert "its output queues does not have the type" in str(found.value)
    assert STACK in str(found.value)


def test_error_for_an_unknown_image_lists_the_platforms_images() -> None:
    platform = Platform.of(STACK, OUTPUTS)
    assert platform.images == {"training": TRAINING_IMAGE}
    with pytest.raises(PlatformError, match="has no image 'vision': use training"):
        _ = platform.images["vision"]


def test_all_unsupported_values_are_reported_with_the_existing_names() -> None:
    platform = Platform.of(STACK, OUTPUTS)
    volumes = {"more": {"path": "/more", "claim": "more"}}
    wrong = job(queue="langauge", datasets="datasets", volumes=volumes)
    with pytest.raises(PlatformError) as found:
        platform.training_job("digits", wrong, image="registry.example.com/training:1.0")
    assert str(found.value).splitlines() == [
        "the platform does not support 'digits':",
        "  - queue is 'langauge', which is not among the platform's queues: use research or "
        "vision.",
        "  - datasets is 'datasets', which is not among the platform's claims: use checkpoints.",
        "  - volumes.more.claim is 'more', which is not among the platform's claims: use "
        "checkpoints.",
        "  - image is 'registry.example.com/training:1.0': it must be pinned by digest, such as "
        "registry.example.com/team/name@sha256:<64 digits>, because nothing else guarantees that "
        "every node runs the same image.",
    ]


def test_request_for_several_shares_of_a_gpu_is_rejected() -> None:
    shared = {**OUTPUTS["gpuNodes"], "resource": "nvidia.com/gpu.shared"}
    platform = Platform.of(STACK, {**OUTPUTS, "gpuNodes": shared})
    with pytest.raises(PlatformError, match=r"gpus_per_node is 2, but several nvidia.*: use 1"):
        platform.training_job("digits", job(gpus_per_node=2), image=TRAINING_IMAGE)
    whole = job(gpus_per_node=2, gpu_resource="nvidia.com/gpu")
    platform.training_job("digits", whole, image=TRAINING_IMAGE)
    platform.training_job("digits", job(), image=TRAINING_IMAGE)


@pytest.mark.parametrize("key", ["Digits_Run", "", "1a", "a" * 64])
def test_key_that_is_not_a_valid_name_is_rejected(key: str) -> None:
    platform = Platform.of(STACK, OUTPUTS)
    with pytest.raises(PlatformError, match=f"  - key is '{key}'"):
        platform.training_job(key, job(), image=TRAINING_IMAGE)
    with pytest.raises(PlatformError, match=f"  - key is '{key}'"):
        platform.inference_service(key, service(run="digits-0123abcd"), image=INFERENCE_IMAGE)


def test_key_of_a_job_with_a_fixed_run_may_be_any_label_value() -> None:
    platform = Platform.of(STACK, OUTPUTS)
    placed = platform.training_job("Digits_Run", job(run="digits"), image=TRAINING_IMAGE)
    assert placed.key == "Digits_Run"
    with pytest.raises(PlatformError, match="  - key is 'a b'"):
        platform.training_job("a b", job(run="digits"), image=TRAINING_IMAGE)
    with pytest.raises(PlatformError, match="  - run is too long"):
        platform.training_job("digits", job(run="a" * 63), image=TRAINING_IMAGE)


def test_maximum_key_length_depends_on_the_derived_names() -> None:
    platform = Platform.of(STACK, OUTPUTS)
    platform.training_job("a" * 45, job(), image=TRAINING_IMAGE)
    with pytest.raises(PlatformError, match="  - key is too long"):
        platform.training_job("a" * 50, job(), image=TRAINING_IMAGE)
    stable = service(run="digits-0123abcd")
    platform.inference_service("a" * 63, stable, image=INFERENCE_IMAGE)
    route = {"gateway": {"name": "g", "namespace": "n"}}
    canary = {"weight": 10, "run": "digits-4567cdef"}
    both = service(run="digits-0123abcd", route=route, canary=canary)
    platform.inference_service("a" * 56, both, image=INFERENCE_IMAGE)
    with pytest.raises(PlatformError, match="a-canary is 64 characters long"):
        platform.inference_service("a" * 57, both, image=INFERENCE_IMAGE)


def test_length_of_pod_names_is_checked() -> None:
    steps = {"a-long-step": {"command": ["run"], "cpu": "1", "memory": "4Gi"}}
    with pytest.raises(PlatformError, match="  - key is too long for a job with the step "):
        Platform.of(STACK, OUTPUTS).training_job("a" * 40, job(steps=steps), image=TRAINING_IMAGE)


def service(**changed: Any) -> InferenceServiceSettings:
    return InferenceServiceSettings.model_validate({"cpu": "1", "memory": "1Gi", **changed})


def test_service_reads_the_model_from_the_platforms_claim() -> None:
    platform = Platform.of(STACK, OUTPUTS)
    placed = platform.inference_service(
        "digits", service(run="digits-0123abcd"), image=INFERENCE_IMAGE
    )
    assert placed.run == "digits-0123abcd"
    assert placed.claims == {"checkpoints": "shared-checkpoints"}
    given = platform.inference_service(
        "digits", service(job="digits"), image=INFERENCE_IMAGE, run="digits-4567cdef"
    )
    assert given.run == "digits-4567cdef"


def test_service_that_the_platform_does_not_support_is_rejected() -> None:
    platform = Platform.of(STACK, OUTPUTS)
    with pytest.raises(PlatformError) as found:
        platform.inference_service(
            "digits", service(job="digits", checkpoints="models"), image=INFERENCE_IMAGE
        )
    assert str(found.value).splitlines()[1:] == [
        "  - job is 'digits', but its run is missing: pass run.",
        "  - checkpoints is 'models', which is not among the platform's claims: use checkpoints.",
    ]


def test_service_with_unknown_volumes_or_a_rollback_is_rejected() -> None:
    volumes = {"handlers": {"claim": "handlers", "path": "/handlers"}}
    route = {"gateway": {"name": "g", "namespace": "n"}}
    canary = {"weight": 10, "run": "digits-4567cdef", "rollback": ROLLBACK}
    wrong = service(run="digits-0123abcd", volumes=volumes, route=route, canary=canary)
    with pytest.raises(PlatformError) as found:
        Platform.of(STACK, OUTPUTS).inference_service("digits", wrong, image=INFERENCE_IMAGE)
    assert str(found.value).splitlines()[1:] == [
        "  - volumes.handlers.claim is 'handlers', which is not among the platform's claims: "
        "use checkpoints.",
        "  - canary.rollback requires the platform's stack: define the service there.",
    ]


def test_canary_uses_the_passed_image() -> None:
    canary = {"weight": 10, "run": "digits-4567cdef"}
    route = {"gateway": {"name": "g", "namespace": "n"}}
    settings = service(run="digits-0123abcd", route=route, canary=canary)
    platform = Platform.of(STACK, OUTPUTS)
    for passed, expected in ((TRAINING_IMAGE, TRAINING_IMAGE), (None, INFERENCE_IMAGE)):
        placed = platform.inference_service(
            "digits", settings, image=INFERENCE_IMAGE, canary_image=passed
        )
        assert placed.canary is not None
        assert placed.canary.image == expected


def test_canary_image_is_ignored_without_a_canary() -> None:
    settings = service(run="digits-0123abcd")
    placed = Platform.of(STACK, OUTPUTS).inference_service(
        "digits", settings, image=INFERENCE_IMAGE, canary_image="new"
    )
    assert placed.canary is None


def test_canary_image_in_the_settings_is_rejected() -> None:
    route = {"gateway": {"name": "g", "namespace": "n"}}
    platform = Platform.of(STACK, OUTPUTS)
    keyed = service(run="digits-0123abcd", route=route, canary={"weight": 10, "image": "new"})
    with pytest.raises(PlatformError, match=r"  - canary\.image is 'new'"):
        platform.inference_service("digits", keyed, image=INFERENCE_IMAGE)


def test_downloaded_model_requires_no_claim() -> None:
    platform = Platform.of(STACK, {**OUTPUTS, "claims": {}})
    fetched = service(url="s3://models/digits-0123abcd/export")
    assert platform.inference_service("digits", fetched, image=INFERENCE_IMAGE).run is None
