"""Platform for the workloads of other stacks, read from the outputs of the platform's stack."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Self

import pulumi
import pulumi_kubernetes as kubernetes
from pydantic import TypeAdapter, ValidationError

from infra.component import cluster_uid
from infra.outputs import PLATFORM_OUTPUTS, PlatformOutputs, gpu_nodes_input
from infra.pods import GpuNodes
from infra.serving.description import InferenceServiceArgs
from infra.settings.inference.service import InferenceServiceSettings
from infra.settings.problems import choice, rule
from infra.settings.training import name_problem
from infra.settings.training.job import TrainingJobSettings
from infra.settings.types import LabelValue, PinnedImage, ServiceName
from infra.settings.volumes import VolumeSettings
from infra.training_run import TrainingJobArgs
from kube.accelerators import SHARED_SUFFIX

_PINNED_IMAGE: TypeAdapter[str] = TypeAdapter(PinnedImage)
_LABEL_VALUE: TypeAdapter[str] = TypeAdapter(LabelValue)
_SERVICE_NAME: TypeAdapter[str] = TypeAdapter(ServiceName)


@dataclass(frozen=True)
class Problem:
    """A key whose value the platform does not support, and the reason."""

    key: str
    reason: str


class PlatformError(pulumi.RunError):
    """Error for a stack that is not usable as a platform, or for an unsupported workload.

    Pulumi prints the message of a RunError without a traceback.
    """


class _Images(dict[str, str]):
    """Images of a platform by key."""

    def __missing__(self, key: str) -> str:
        raise PlatformError(f"The platform's stack has no image {key!r}: {choice(self)}.")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """Platform for the workloads of another stack.

    `claims` maps logical names of claims to their names in the cluster. `queues` is None if the
    queues are unknown. The namespace and the claims may be outputs of resources, because the
    names of runs do not depend on them.
    """

    namespace: pulumi.Input[str]
    claims: Mapping[str, pulumi.Input[str]]
    gpu_nodes: GpuNodes
    queues: Collection[str] | None = None
    images: Mapping[str, str]
    cluster_uid: str | None = None
    """UID of the kube-system namespace; None if the platform has no `cluster` output."""

    @classmethod
    async def read(
        cls,
        stack: str,
        opts: pulumi.ResourceOptions | None = None,
        *,
        name: str | None = None,
        provider: kubernetes.Provider | None = None,
        check_cluster: bool = True,
    ) -> Self:
        """Read a platform from the outputs of a stack, such as `organization/gpu-platform/prod`.

        Args:
            stack: Name of the stack.
            opts: Options of the StackReference.
            name: Name of the StackReference. Required if a program reads the stack more than once.
            provider: Provider of the workloads, by default the program's default provider. Unless
                `check_cluster` is False, it must be allowed to read the kube-system namespace.
            check_cluster: Verify that the provider uses the cluster of the platform.

        Raises:
            PlatformError: If the stack does not have the outputs of this project, or the provider
                does not use the cluster of the platform.
        """
        reference = pulumi.StackReference(name or stack, stack, opts)
        names = PlatformOutputs.__annotations__
        found = await asyncio.gather(*(reference.get_output_details(name) for name in names))
        values = {
            name: details.value
            for name, details in zip(names, found, strict=True)
            if details.value is not None
        }
        platform = cls.of(stack, values)
        if check_cluster and platform.cluster_uid is not None:
            found_uid = await _cluster_uid(name or stack, opts, provider)
            # In a preview, the UID is unknown if the provider's configuration is unknown.
            if found_uid not in (None, platform.cluster_uid):
                raise PlatformError(
                    f"Stack {stack!r} is the platform of cluster {platform.cluster_uid}, but "
                    f"this program deploys to cluster {found_uid}: pass a provider for the "
                    "platform's cluster, or correct kubernetes:context. A cluster is identified "
                    "by the UID of its kube-system namespace."
                )
        return platform

    @classmethod
    def of(cls, stack: str, values: Mapping[str, object]) -> Self:
        """Return the platform that the outputs of a stack describe.

        Raises:
            PlatformError: If an output is missing or invalid.
        """
        try:
            outputs = PLATFORM_OUTPUTS.validate_python(values)
        except ValidationError as error:
            found = "; ".join(
                f"its output {'.'.join(map(str, detail['loc']))} {_mismatch(detail['type'])}"
                for detail in error.errors(include_url=False)
            )
            raise PlatformError(
                f"Stack {stack!r} cannot be used as a platform: {found}. Use the name of a stack "
                "of the gpu-platform project that was updated with this version or a later one."
            ) from None
        return cls(
            namespace=outputs["namespace"],
            claims=outputs["claims"],
            gpu_nodes=gpu_nodes_input(outputs["gpuNodes"]),
            queues=tuple(outputs["queues"]),
            images=_Images(outputs["images"]),
            cluster_uid=outputs["cluster"]["uid"] if "cluster" in outputs else None,
        )

    def training_job(
        self,
        key: str,
        job: TrainingJobSettings,
        *,
        image: pulumi.Input[str],
        image_identity: str | None = None,
        service_account: str = "training",
    ) -> TrainingJobArgs:
        """Return the arguments of a job on this platform. `image` must be pinned by digest.

        `image` may also be an output, such as the reference of a WorkloadImage. This requires
        `image_identity`, the string that represents the image in the names of runs.

        Raises:
            PlatformError: If the platform does not support the job. The message lists every
                unsupported key.
        """
        problems = self.problems_of_job(job, image, image_identity)
        raise_if_any(key, chain(problems_of_job_key(key, job), problems))
        return TrainingJobArgs(
            key=key,
            job=job,
            namespace=self.namespace,
            image=image,
            image_identity=image_identity or str(image),
            gpu_nodes=self.gpu_nodes,
            claims=self.claims,
            service_account=service_account,
        )

    def inference_service(
        self,
        key: str,
        service: InferenceServiceSettings,
        *,
        image: pulumi.Input[str],
        run: str | None = None,
        canary_image: pulumi.Input[str] | None = None,
        domain: str = "cluster.local",
        service_account: str = "inference",
    ) -> InferenceServiceArgs:
        """Return the arguments of a service on this platform.

        Images must be pinned by digest, unless they are outputs. If the settings name a job, `run`
        is the run to serve. A canary runs `canary_image`, by default the image of the service.

        Raises:
            PlatformError: If the platform does not support the service. The message lists every
                unsupported key.
        """
        if not isinstance(self.namespace, str):
            raise PlatformError(
                f"The namespace of {key!r} is an output of a resource, but the URL of a service "
                "contains it: pass the name as a string."
            )
        problems = self.problems_of_service(service, image, canary_image, run=run)
        longest_name = key if service.canary is None else f"{key}-canary"
        raise_if_any(key, chain(_problems_of_key(key, longest_name), problems))
        if service.canary is not None and canary_image is not None:
            # In the platform's stack, this setting is the key of an image. Here, any value means
            # that the canary does not use the image of the service.
            canary = service.canary.model_copy(update={"image": "canary"})
            service = service.model_copy(update={"canary": canary})
        return InferenceServiceArgs(
            key=key,
            service=service,
            run=run or service.run,
            namespace=self.namespace,
            domain=domain,
            image=image,
            canary_image=canary_image,
            gpu_nodes=self.gpu_nodes,
            claims=self.claims,
            service_account=service_account,
        )

    def problems_of_job(
        self,
        job: TrainingJobSettings,
        image: pulumi.Input[str] | None,
        image_identity: str | None = None,
    ) -> Iterator[Problem]:
        """Yield a problem for each setting of a job that this platform does not support.

        If `image` is None, the image is not checked.
        """
        if self.queues is not None and job.queue not in self.queues:
            yield unavailable("queue", job.queue, "queues", self.queues)
        resource = job.gpu_resource or self.gpu_nodes.resource
        if resource.endswith(SHARED_SUFFIX) and job.gpus_per_node > 1:
            yield Problem(
                "gpus_per_node",
                f"is {job.gpus_per_node}, but several {resource} may be shares of one GPU: use 1",
            )
        yield from self._missing_claim("checkpoints", job.checkpoints)
        if job.datasets is not None:
            yield from self._missing_claim("datasets", job.datasets)
        if job.notebook is not None:
            yield from self._missing_claim("notebook.home", job.notebook.home)
        if job.schedule is not None:
            yield Problem("schedule", "requires the platform's stack: define the job there")
        yield from self._missing_claims(job.volumes)
        if image is None:
            return
        if not isinstance(image, pulumi.Output):
            yield from pinning_problems(image)
        elif image_identity is None:
            yield Problem(
                "image",
                "is an output of a resource, but the name of a run depends on it: pass the "
                "reference with its digest, or image_identity",
            )

    def problems_of_service(
        self,
        service: InferenceServiceSettings,
        image: pulumi.Input[str],
        canary_image: pulumi.Input[str] | None = None,
        *,
        run: str | None = None,
    ) -> Iterator[Problem]:
        """Yield a problem for each setting of a service that this platform does not support."""
        if service.job is not None and run is None:
            yield Problem("job", f"is {service.job!r}, but its run is missing: pass run")
        if service.sweep is not None:
            yield Problem(
                "sweep",
                f"is {service.sweep!r}, but only the stack with this sweep knows its winner: omit "
                "it, and set run to the run of the winner",
            )
        for name, claim in service.claims.items():
            yield from self._missing_claim(name, claim)
        yield from self._missing_claims(service.volumes)
        if service.canary is not None and service.canary.rollback is not None:
            yield Problem(
                "canary.rollback", "requires the platform's stack: define the service there"
            )
        if service.canary is not None and service.canary.image is not None and canary_image is None:
            yield Problem(
                "canary.image",
                f"is {service.canary.image!r}, but only the platform's stack has images by key: "
                "pass canary_image",
            )
        for each in (image, canary_image if service.canary is not None else None):
            if each is not None and not isinstance(each, pulumi.Output):
                yield from pinning_problems(each)

    def _missing_claims(self, volumes: Mapping[str, VolumeSettings]) -> Iterator[Problem]:
        for name, volume in volumes.items():
            if volume.claim is not None:
                yield from self._missing_claim(f"volumes.{name}.claim", volume.claim)

    def _missing_claim(self, key: str, claim: str) -> Iterator[Problem]:
        if claim not in self.claims:
            yield unavailable(key, claim, "claims", self.claims)


async def _cluster_uid(
    name: str, opts: pulumi.ResourceOptions | None, provider: kubernetes.Provider | None
) -> str | None:
    """Return the UID of a provider's cluster.

    Return None if the UID is unknown, or if the provider only renders manifests.
    """
    chosen = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(provider=provider))
    return await cluster_uid(f"{name}-kube-system", chosen).future()


def unavailable(key: str, value: str, kind: str, known: Collection[str]) -> Problem:
    """Return the problem of a setting whose value is not one of the known names."""
    return Problem(key, f"is {value!r}, which is not among the platform's {kind}: {choice(known)}")


def problems_of_job_key(key: str, job: TrainingJobSettings) -> Iterator[Problem]:
    """Yield a problem if the names of a run cannot be derived from a key.

    If `run` is set, the key is only used as the value of a label, so it may be longer.
    """
    if job.run is not None:
        yield from _problems_of_key(key, key, _LABEL_VALUE)
    else:
        yield from _problems_of_key(key, key)
    if problem := name_problem(key, job):
        yield Problem("key" if job.run is None else "run", f"is too long for a job {problem}")


def _problems_of_key(
    key: str, name: str, allowed: TypeAdapter[str] = _SERVICE_NAME
) -> Iterator[Problem]:
    """Yield a problem if a name that is derived from a key is not allowed."""
    derived = "it" if name == key else f"the name {name}"
    try:
        allowed.validate_python(name)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            yield Problem("key", f"is {key!r}: {derived} {rule(detail)}")


def pinning_problems(image: object) -> Iterator[Problem]:
    """Yield a problem if an image is not pinned by digest."""
    try:
        _PINNED_IMAGE.validate_python(image)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            yield Problem("image", f"is {image!r}: it {rule(detail)}")


def raise_if_any(key: str, problems: Iterable[Problem]) -> None:
    """Raise a PlatformError that lists the problems of a job or service, if there are any."""
    if lines := [f"  - {problem.key} {problem.reason}." for problem in problems]:
        raise PlatformError("\n".join([f"the platform does not support {key!r}:", *lines]))


def _mismatch(kind: str) -> str:
    return "is missing" if kind == "missing" else "does not have the type that this version expects"
