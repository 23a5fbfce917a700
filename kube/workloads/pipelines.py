"""Pipeline and virtual machine kinds: Argo Workflows, Tekton, Spark, KubeVirt, CI runners."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kube.workloads.control import ClaimTemplates, Job
from kube.workloads.kubernetes import CONCURRENCY, NOT_RUN, REPLICAS
from kube.workloads.record import Count, Devices, Pods, Role, WorkloadKind

_BATCH: Final[tuple[Role, ...]] = ("batch", "training")
_STEPS: Final = ("container", "script", "containerSet.containers.*", "sidecars.*")


def _template_paths(spec: str) -> tuple[str, ...]:
    """Return the paths of an Argo workflow's templates, and of inline templates in them."""
    at = f"{spec}.templates.*"
    return (at, f"{at}.dag.tasks.*.inline", f"{at}.steps.*.*.inline")


def _priority(spec: str) -> tuple[str, ...]:
    return (f"{spec}.podPriorityClassName", f"{spec}.podPriority")


def _without_container(at: str) -> Pods:
    """Return the pods of templates that define no container; the controller may add one."""
    return Pods(at=at, metadata=f"{at}.metadata", count=NOT_RUN, partial=True, additional=True)


def _templates(spec: str, *counts: Count) -> Iterator[Pods]:
    """Yield the pods of an Argo workflow; a step may run any number of times in parallel."""
    for at in (*_template_paths(spec), f"{spec}.templateDefaults"):
        yield Pods(
            at=at,
            containers=_STEPS,
            defaults=(f"{spec}.templateDefaults", spec),
            metadata=f"{at}.metadata",
            priority=_priority(spec),
            count=counts or (Count(paths=(f"{spec}.parallelism",), default=None),),
        )
        yield _without_container(at)
    # The fields of the workflow also apply to templates that other objects define.
    yield Pods(
        at=spec,
        metadata=f"{spec}.podMetadata",
        priority=_priority(spec),
        count=NOT_RUN,
        partial=True,
        additional=True,
    )
    at = f"{spec}.artifactGC"
    yield Pods(at=at, metadata=f"{at}.podMetadata", count=NOT_RUN, partial=True)


def _argo(kind: str, spec: str, *counts: Count) -> WorkloadKind:
    defaults = f"{spec}.templateDefaults"
    return WorkloadKind(
        group="argoproj.io",
        kind=kind,
        pods=tuple(_templates(spec, *counts)),
        roles=_BATCH,
        ends=True,
        # Strings that contain patches for the pods.
        texts=(f"{spec}.podSpecPatch", *(f"{at}.podSpecPatch" for at in _template_paths(spec))),
        namespaced=kind != "ClusterWorkflowTemplate",
        # Argo deletes these claims with the workflow.
        claims=(
            ClaimTemplates(at=f"{spec}.volumeClaimTemplates.*", spec="spec", name="metadata.name"),
        ),
        objects=tuple(f"{at}.resource.manifest" for at in (*_template_paths(spec), defaults)),
        shares_namespace=True,
        # These are parameter values of steps, even if they look like pods.
        patterns=tuple(
            f"{spec}.templates.*.{step}.withItems" for step in ("dag.tasks.*", "steps.*.*")
        ),
        opaque=(
            # Manifests from artifacts, kubectl flags (which may set another namespace), and
            # plugins, which run in the agent pod.
            *(
                f"{at}.{field}"
                for at in (*_template_paths(spec), defaults)
                for field in ("resource.manifestFrom", "resource.flags", "plugin")
            ),
            # Templates at deeper levels of nesting.
            *(
                f"{at}.{field}"
                for at in (*_template_paths(spec)[1:], defaults)
                for field in ("dag", "steps")
            ),
        ),
    )


ARGO: Final = [
    _argo("Workflow", "spec"),
    _argo("WorkflowTemplate", "spec", *NOT_RUN),
    _argo("ClusterWorkflowTemplate", "spec", *NOT_RUN),
    _argo(
        "CronWorkflow",
        "spec.workflowSpec",
        CONCURRENCY,
        Count(paths=("spec.workflowSpec.parallelism",), default=None),
    ),
    WorkloadKind(
        group="argoproj.io",
        kind="WorkflowTaskSet",
        pods=(
            Pods(at="spec.tasks.*", containers=_STEPS, metadata="spec.tasks.*.metadata"),
            _without_container("spec.tasks.*"),
        ),
        roles=_BATCH,
        ends=True,
        objects=("spec.tasks.*.resource.manifest",),
        shares_namespace=True,
        opaque=tuple(
            f"spec.tasks.*.{field}"
            for field in ("plugin", "resource.manifestFrom", "resource.flags", "dag", "steps")
        ),
    ),
]


_RESOURCES: Final = {"resources": "computeResources"}


_OVERRIDDEN: Final = ("stepSpecs", "sidecarSpecs", "stepOverrides", "sidecarOverrides")


def _overrides(spec: str) -> Pods:
    """Return the overrides of container resources in a TaskRun or PipelineRun."""
    return Pods(
        at=spec,
        # The last two field names are those of v1beta1.
        containers=("", *(f"{name}.*" for name in _OVERRIDDEN)),
        fields=_RESOURCES,
        copied=() if spec == "spec" else (f"{spec}.metadata",),
        partial=True,
    )


def _task(spec: str, pod: str, *counts: Count) -> Pods:
    """Return the pod of a Tekton task. The task's steps are the pod's containers."""
    return Pods(
        at=spec,
        containers=("steps.*", "sidecars.*"),
        reference="ref",  # Refers to a StepAction, which is evaluated where it is declared.
        templates={"steps.*": "stepTemplate"},
        fields=_RESOURCES,
        defaults=(pod,) if pod else (),
        metadata=f"{spec}.metadata",
        # Tekton copies the metadata of a Task to its pods. For the metadata of a Pipeline, see
        # `_PIPELINE_METADATA`.
        copied=("metadata",) if spec == "spec" else (),
        count=counts,
        supplied=() if pod else ("tolerations",),
    )


# Tekton copies the annotations of a pipeline to all pods of the pipeline.
_PIPELINE_METADATA: Final = Pods(
    at="spec", metadata="metadata", count=NOT_RUN, partial=True, additional=True
)

_TASKS: Final = ("tasks.*", "finally.*")
_STEP_REFERENCES: Final = "steps.*.ref"
_REFERENCE_FIELDS: Final = ("taskRef", "pipelineRef", f"taskSpec.{_STEP_REFERENCES}")
_NESTED_TASKS: Final = tuple(f"{at}.pipelineSpec.{inner}" for at in _TASKS for inner in _TASKS)
_ALL_TASKS: Final = (*_TASKS, *_NESTED_TASKS)


_REFERENCES: Final = {
    "Task": (f"spec.{_STEP_REFERENCES}",),
    "ClusterTask": (f"spec.{_STEP_REFERENCES}",),
    "TaskRun": ("spec.taskRef", f"spec.taskSpec.{_STEP_REFERENCES}"),
    "PipelineRun": (
        "spec.pipelineRef",
        *(f"spec.pipelineSpec.{at}.{name}" for at in _ALL_TASKS for name in _REFERENCE_FIELDS),
    ),
    "Pipeline": tuple(f"spec.{at}.{name}" for at in _ALL_TASKS for name in _REFERENCE_FIELDS),
}
"""Paths of the references to tasks, pipelines and StepActions."""


_WORKSPACE_SOURCES: Final = (
    "spec.workspaces.*.csi",
    "spec.workspaces.*.projected.sources.*.serviceAccountToken",
)
"""Paths of workspace sources that become CSI or service account token volumes in pods."""


def _shared_pods(*paths: str) -> Iterator[Pods]:
    """Yield step templates, and the pod templates of tasks that other objects define."""
    for at in paths:
        template = at.endswith("stepTemplate")
        yield Pods(at=at, containers=("",) if template else (), count=NOT_RUN, partial=True)


def _tekton(
    kind: str, *pods: Pods, shared: tuple[str, ...], opaque: tuple[str, ...] = ()
) -> WorkloadKind:
    return WorkloadKind(
        group="tekton.dev",
        kind=kind,
        pods=(*pods, *_shared_pods(*shared)),
        roles=_BATCH,
        ends=True,
        namespaced=kind != "ClusterTask",
        opaque=(*opaque, *_WORKSPACE_SOURCES),
        remote=tuple(
            f"{at}.{field}"
            for at in _REFERENCES.get(kind, ())
            for field in ("resolver", "bundle")  # `bundle` is a field of v1beta1.
        ),
        claims=(
            ClaimTemplates(at="spec.workspaces.*", spec="volumeClaimTemplate.spec", name="name"),
        ),
    )


TEKTON: Final = [
    # Tasks run no pods themselves: a TaskRun starts the pods and adds its own tolerations.
    _tekton("Task", _task("spec", "", *NOT_RUN), shared=("spec.stepTemplate",)),
    _tekton("ClusterTask", _task("spec", "", *NOT_RUN), shared=("spec.stepTemplate",)),
    _tekton(
        "StepAction", Pods(at="", containers=("spec",), count=NOT_RUN, partial=True), shared=()
    ),
    _tekton(
        "TaskRun",
        _task("spec.taskSpec", "spec.podTemplate"),
        _overrides("spec"),
        shared=("spec.podTemplate", "spec.taskSpec.stepTemplate"),
    ),
    _tekton(
        "Pipeline",
        *(_task(f"spec.{at}.taskSpec", "", *NOT_RUN) for at in _ALL_TASKS),
        _PIPELINE_METADATA,
        shared=tuple(f"spec.{at}.taskSpec.stepTemplate" for at in _ALL_TASKS),
        opaque=tuple(f"spec.{at}.pipelineSpec" for at in _NESTED_TASKS),
    ),
    _tekton(
        "PipelineRun",
        *(
            _task(f"spec.pipelineSpec.{at}.taskSpec", "spec.taskRunTemplate.podTemplate")
            for at in _ALL_TASKS
        ),
        _overrides("spec.taskRunSpecs.*"),
        _PIPELINE_METADATA,
        shared=(
            "spec.taskRunTemplate.podTemplate",
            "spec.taskRunSpecs.*.podTemplate",
            # The next two field names are those of v1beta1.
            "spec.podTemplate",
            "spec.taskRunSpecs.*.taskPodTemplate",
            *(f"spec.pipelineSpec.{at}.taskSpec.stepTemplate" for at in _ALL_TASKS),
        ),
        opaque=tuple(f"spec.pipelineSpec.{at}.pipelineSpec" for at in _NESTED_TASKS),
    ),
]


def _spark(spec: str, *outer: Count) -> Iterator[Pods]:
    instances = Count(
        paths=(f"{spec}.executor.instances",),
        maxima=(f"{spec}.dynamicAllocation.maxExecutors",),
        enabled=f"{spec}.dynamicAllocation.enabled",
    )
    for name, counts in (("driver", outer), ("executor", (*outer, instances))):
        at = f"{spec}.{name}"
        yield Pods(
            at=at,
            containers=("", "sidecars.*"),
            defaults=(spec,),
            inherited=("image", "volumes", "nodeSelector", "imagePullSecrets"),
            metadata=at,
            priority=(f"{spec}.batchSchedulerOptions.priorityClassName",),
            count=counts,
            devices=(Devices(each="gpu", name="name", count="quantity"),),
            partial=True,
        )
        # The operator adds the image.
        yield Pods(at=f"{at}.template.spec", count=counts, supplied=("image",), partial=True)


_SPARK_PROPERTIES: Final = (
    "spark.kubernetes.*container.image",
    "spark.kubernetes.*.volumes.hostPath.*",
    "spark.kubernetes.*podTemplate*",
    "spark.kubernetes.*podGroupTemplate*",
    "spark.kubernetes.*node.selector.*",
    "spark.kubernetes.*scheduler.name",
    "spark.kubernetes.namespace",
    "spark.dynamicAllocation.*Executors",
    "spark.executor.instances",
    "spark.*.resource.*.vendor",
)
"""Spark settings that override the object's pod fields."""


def _opaque_paths(spec: str) -> tuple[str, ...]:
    return tuple(f"{spec}.sparkConf[{name}]" for name in _SPARK_PROPERTIES)


SPARK: Final = [
    WorkloadKind(
        group="sparkoperator.k8s.io",
        kind="SparkApplication",
        pods=tuple(_spark("spec")),
        roles=("batch",),
        ends=True,
        job=Job(queue="batchSchedulerOptions.queue"),
        opaque=_opaque_paths("spec"),
    ),
    WorkloadKind(
        group="sparkoperator.k8s.io",
        kind="ScheduledSparkApplication",
        pods=tuple(_spark("spec.template", CONCURRENCY)),
        roles=("batch",),
        ends=True,
        job=Job(at="spec.template", queue="batchSchedulerOptions.queue"),
        opaque=_opaque_paths("spec.template"),
    ),
    WorkloadKind(
        group="sparkoperator.k8s.io",
        kind="SparkConnect",
        pods=(
            Pods(at="spec", images=("",), count=NOT_RUN, partial=True),
            # The operator adds the image.
            Pods(at="spec.server.template.spec", supplied=("image",), partial=True),
            Pods(
                at="spec.executor.template.spec",
                supplied=("image",),
                count=(Count(paths=("spec.executor.instances",)),),
                partial=True,
            ),
        ),
        roles=("interactive",),
        ends=False,
        opaque=_opaque_paths("spec"),
    ),
]


def _machine(kind: str, group: str, at: str, *counts: Count) -> WorkloadKind:
    devices = tuple(
        Devices(each=f"domain.devices.{name}.*", name="deviceName")
        for name in ("gpus", "hostDevices")
    )
    images = Pods(at=at, images=("volumes.*.containerDisk",), count=NOT_RUN, partial=True)
    pods = Pods(at=at, count=counts, devices=devices, machine=True)
    return WorkloadKind(
        group=group, kind=kind, pods=(images, pods), roles=("interactive", "serving"), ends=False
    )


_SPEC: Final = "spec.template.spec"

KUBEVIRT: Final = [
    _machine("VirtualMachine", "kubevirt.io", _SPEC),
    _machine("VirtualMachineInstance", "kubevirt.io", "spec"),
    _machine("VirtualMachineInstanceReplicaSet", "kubevirt.io", _SPEC, REPLICAS),
    _machine(
        "VirtualMachinePool",
        "pool.kubevirt.io",
        "spec.virtualMachineTemplate.spec.template.spec",
        REPLICAS,
    ),
]

# Runners of GitHub Actions.
RUNNERS: Final = [
    WorkloadKind(
        group="actions.github.com",
        kind="AutoscalingRunnerSet",
        pods=(
            Pods(
                at=_SPEC,
                count=(
                    Count(paths=("spec.minRunners",), maxima=("spec.maxRunners",), default=None),
                ),
            ),
            # The controller adds the image of the `listener` container.
            Pods(at="spec.listenerTemplate.spec", supplied=("image",), partial=True),
        ),
        roles=_BATCH,
        ends=True,
    )
]

KINDS: Final = [*ARGO, *TEKTON, *SPARK, *KUBEVIRT, *RUNNERS]
