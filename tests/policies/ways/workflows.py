"""Ways to run containers in workflows, tasks and Spark applications."""

from collections.abc import Callable
from typing import Any

from tests.policies.harness import REMOVED
from tests.policies.ways.containers import (
    CONTEXT,
    EVIL,
    KUBERNETES_POD,
    field_edit,
    host_volumes,
    latest_image,
    privileged,
)
from tests.policies.ways.way import Way, documents, way

INLINE: dict[str, Callable[[Any], Any]] = {
    "task": lambda inline: {"dag": {"tasks": [{"name": "a", "inline": inline}]}},
    "step": lambda inline: {"steps": [[{"name": "a", "inline": inline}]]},
}
MANIFEST = {"resource": {"action": "create", "manifest": str(KUBERNETES_POD)}}
STEP = {"steps": [EVIL]}
ELSEWHERE = {"resource": {"action": "get", "flags": ["-n", "kube-system"]}}
DELETE = {"resource": {"action": "delete", "flags": ["job", "--selector", "run=a"]}}
GET = {"resource": {"action": "get"}}
PATCH = '{"hostPID": true}'
GRAPH = [
    {
        "name": "main",
        "dag": {"tasks": [{"name": "a", "templateRef": {"name": "a", "template": "b"}}]},
    }
]
STEP_FIELDS = (
    ("tolerations", [{"operator": "Exists"}], "tolerations-bounded"),
    (CONTEXT, {"runAsNonRoot": False, "runAsUser": 0}, "run-as-non-root"),
    ("podSpecPatch", PATCH, "manifest-readable"),
)
REFERRING = (
    ("hostNetwork", True, "no-host-namespaces"),
    ("volumes", [{"name": "a", "hostPath": {"path": "/"}}], "no-host-path"),
    ("podPriorityClassName", "system-node-critical", "priority-not-of-system"),
    ("podPriority", 2_000_001_000, "priority-not-of-system"),
    *STEP_FIELDS,
)
PIPELINES = (("tekton_pipeline", "spec"), ("tekton_pipeline_run", "spec/pipelineSpec"))


def trigger(description: str, place: str, value: Any, rules: str = "") -> Way:
    """Return an edit that changes the trigger of a Sensor."""
    return way(description, "argo_events_sensor", rules, (f"1/spec/triggers/0/{place}", value))


ENVIRONMENT = {"containers": [{"name": "node", "env": [{"name": "A", "value": "b"}]}]}

HARMLESS = [
    way(
        "a training workflow whose templates are in another object",
        "argo_workflow_steps",
        "",
        ("0/spec/templates", GRAPH),
        ("0/metadata/labels", {"app.kubernetes.io/component": "training"}),
    ),
    field_edit(
        "a manifest in an annotation of a pod template",
        "ordinary_web_application",
        "spec/template/metadata/annotations",
        {"example.com/last-applied": str(KUBERNETES_POD)},
    ),
    field_edit(
        "a step that deletes the objects that kubectl's flags select",
        "argo_workflow_steps",
        "spec/templates/1",
        DELETE,
    ),
    *(
        way(
            f"the environment of a container in {field}",
            "train_job_with_runtime",
            "",
            (f"2/spec/{field}", [{"targetJobs": [{"name": "node"}], **override}]),
        )
        for field, override in (
            ("podTemplateOverrides", {"spec": ENVIRONMENT}),
            ("podSpecOverrides", ENVIRONMENT),
        )
    ),
    way(
        "steps that inherit fields from the step template",
        "tekton_task",
        "",
        ("0/spec/stepTemplate", documents("tekton_task")[0]["spec"]["steps"][0]),
        ("0/spec/steps/0", {"args": ["clone"], "securityContext": {"runAsUser": 1001}}),
    ),
    field_edit(
        "a step that refers to a StepAction", "tekton_task", "spec/steps/0", {"ref": {"name": "a"}}
    ),
    trigger(
        "a trigger whose event sets the name",
        "template/k8s/parameters",
        [{"src": {"dependencyName": "push"}, "dest": "metadata.name", "operation": "append"}],
    ),
    trigger(
        "a trigger whose event sets the body of a request",
        "parameters",
        [{"src": {"dependencyName": "push"}, "dest": "http.payload.0.src.value"}],
    ),
]
WAYS = [
    # Argo Workflows
    privileged(
        "the container of a workflow",
        "argo_workflow_steps",
        f"spec/templates/1/container/{CONTEXT}",
    ),
    privileged(
        "the script of a workflow", "argo_workflow_steps", f"spec/templates/2/script/{CONTEXT}"
    ),
    privileged(
        "the script of a CronWorkflow",
        "argo_cron_workflow",
        f"spec/workflowSpec/templates/0/container/{CONTEXT}",
    ),
    privileged(
        "a container in a container set",
        "argo_workflow_template",
        f"spec/templates/0/containerSet/containers/0/{CONTEXT}",
    ),
    latest_image(
        "the container of a workflow", "argo_workflow_steps", "spec/templates/1/container/image"
    ),
    latest_image(
        "the script of a workflow", "argo_workflow_steps", "spec/templates/2/script/image"
    ),
    host_volumes("the volumes of a workflow", "argo_workflow_steps", "spec/volumes"),
    host_volumes("the volumes of a step", "argo_workflow_steps", "spec/templates/1/volumes"),
    field_edit(
        "a sidecar of a step is privileged",
        "argo_workflow_steps",
        "spec/templates/1/sidecars",
        [EVIL],
        "not-privileged",
    ),
    field_edit(
        "an init container of a step is privileged",
        "argo_workflow_steps",
        "spec/templates/1/initContainers",
        [EVIL],
        "not-privileged",
    ),
    field_edit("a workflow on the host network", "argo_workflow_steps", "spec/hostNetwork", True),
    field_edit(
        "a workflow that runs as root",
        "argo_workflow_steps",
        f"spec/{CONTEXT}",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    field_edit(
        "a manifest created in the namespace from kubectl's flags",
        "argo_workflow_steps",
        "spec/templates/1",
        ELSEWHERE,
        "kind-known",
    ),
    way(
        "a task that creates a manifest in the namespace from kubectl's flags",
        "argo_workflow_steps",
        "kind-known",
        ("0/kind", "WorkflowTaskSet"),
        ("0/spec", {"tasks": {"a": ELSEWHERE}}),
    ),
    field_edit(
        "a privileged step that refers to a StepAction",
        "tekton_task",
        "spec/steps/0",
        {"ref": {"name": "a"}, "securityContext": {"privileged": True}},
        "not-privileged",
    ),
    field_edit(
        "a pod patch as text",
        "argo_workflow_steps",
        "spec/podSpecPatch",
        '{"hostPID": true}',
    ),
    field_edit(
        "a step's pod patch as text",
        "argo_workflow_steps",
        "spec/templates/1/podSpecPatch",
        '{"hostPID": true}',
    ),
    *(
        way(
            f"{description} {field} for templates from another object",
            "argo_workflow_steps",
            rule,
            *edits,
        )
        for field, value, rule in REFERRING
        for description, edits in (
            (
                "a workflow with",
                (("0/spec/templates", REMOVED), ("0/spec/workflowTemplateRef", {"name": "a"})),
            ),
            ("a graph with", (("0/spec/templates", GRAPH),)),
        )
        for edits in [(*edits, (f"0/spec/{field}", value))]
    ),
    *(
        way(
            f"a {kind} with a text patch for templates from another object",
            base,
            "manifest-readable",
            (f"{spec}/templates", GRAPH),
            (f"{spec}/podSpecPatch", PATCH),
        )
        for kind, base, spec in (
            ("CronWorkflow", "argo_cron_workflow", "0/spec/workflowSpec"),
            (
                "Sensor's workflow",
                "argo_events_sensor",
                "1/spec/triggers/0/template/k8s/source/resource/spec",
            ),
        )
    ),
    *(
        way(
            f"a step that creates an object, with {field}",
            "argo_workflow_steps",
            rule,
            (
                "0/spec/templates/1",
                {"name": "download", **GET, field: value},
            ),
        )
        for field, value, rule in STEP_FIELDS
    ),
    field_edit(
        "template defaults with a container",
        "argo_workflow_steps",
        "spec/templateDefaults",
        {"container": EVIL},
    ),
    field_edit(
        "a step that applies a manifest as text",
        "argo_workflow_steps",
        "spec/templates/1",
        {"name": "download", "resource": {"action": "create", "manifest": str(KUBERNETES_POD)}},
    ),
    field_edit(
        "a workflow with a password",
        "argo_workflow_steps",
        "spec/templates/1/container/env",
        [{"name": "PASSWORD", "value": "correct horse"}],
        "no-literal-secrets",
    ),
    *(
        field_edit(
            f"a container inside a {description} of a workflow",
            "argo_workflow_steps",
            "spec/templates/0",
            {"name": "main", **wrap({"container": EVIL})},
            "not-privileged",
        )
        for description, wrap in INLINE.items()
    ),
    *(
        field_edit(
            f"a manifest inside a {description} of a workflow",
            "argo_workflow_steps",
            "spec/templates/0",
            {"name": "main", **wrap(MANIFEST)},
            "not-privileged",
        )
        for description, wrap in INLINE.items()
    ),
    *(
        field_edit(
            f"a template inside a {description} inside a {outer} of a workflow",
            "argo_workflow_steps",
            "spec/templates/0",
            {"name": "main", **wrap_outer(wrap({"container": EVIL}))},
            "kind-known",
        )
        for outer, wrap_outer in INLINE.items()
        for description, wrap in INLINE.items()
    ),
    field_edit(
        "a manifest in the defaults of a workflow",
        "argo_workflow_steps",
        "spec/templateDefaults",
        MANIFEST,
        "not-privileged",
    ),
    # fields that later versions may add
    *(
        field_edit(
            f"{description} in a new field of {base}", base, f"{at}/newField", value, "kind-known"
        )
        for base, at in (
            ("argo_workflow_steps", "spec/templates/0"),
            ("tekton_pipeline", "spec/tasks/0"),
            ("ordinary_web_application", "spec/template/spec"),
            ("argo_events_sensor", "spec"),
            ("spark_application", "spec/driver"),
        )
        for description, value in (
            ("a container", EVIL),
            ("a manifest", KUBERNETES_POD | {"spec": {"hostPID": True}}),
            ("pod fields", {"volumes": [], "serviceAccountName": "a"}),
        )
    ),
    # Argo Events
    *(
        trigger(
            f"a text manifest created by a {name} trigger",
            f"template/{name}/source",
            {"inline": str(KUBERNETES_POD)},
            "not-privileged",
        )
        for name in ("k8s", "argoWorkflow")
    ),
    trigger(
        "a trigger that creates a manifest from a URL",
        "template/k8s/source",
        {"url": {"path": "https://example.com/pod.yaml"}},
        "kind-known",
    ),
    *(
        trigger(
            f"a trigger whose event sets {dest or 'everything'}",
            f"{at}parameters",
            [{"src": {"dependencyName": "push", "value": "true"}, "dest": dest}],
            "kind-known",
        )
        for at, dest in (
            ("template/k8s/", "spec.hostNetwork"),
            ("template/k8s/", "metadata.annotations.a"),
            ("", "k8s.source.resource.spec.hostNetwork"),
            ("", ""),
        )
    ),
    # Tekton
    *(
        field_edit(
            f"a step inside a pipeline inside {base}",
            base,
            f"{spec}/tasks/0",
            {"name": "a", "pipelineSpec": {"finally": [{"name": "b", "taskSpec": STEP}]}},
            "not-privileged",
        )
        for base, spec in PIPELINES
    ),
    *(
        field_edit(
            f"a step inside two pipelines inside {base}",
            base,
            f"{spec}/tasks/0",
            {
                "name": "a",
                "pipelineSpec": {
                    "tasks": [{"pipelineSpec": {"tasks": [{"name": "b", "taskSpec": STEP}]}}]
                },
            },
            "kind-known",
        )
        for base, spec in PIPELINES
    ),
    privileged("a step", "tekton_task", f"spec/steps/0/{CONTEXT}"),
    privileged(
        "a step inside a pipeline", "tekton_pipeline", f"spec/tasks/1/taskSpec/steps/0/{CONTEXT}"
    ),
    privileged(
        "a step inside a run",
        "tekton_pipeline_run",
        f"spec/pipelineSpec/tasks/0/taskSpec/steps/0/{CONTEXT}",
    ),
    privileged("the step template of a task", "tekton_task", f"spec/stepTemplate/{CONTEXT}"),
    latest_image("a step", "tekton_task", "spec/steps/0/image"),
    host_volumes("the volumes of a task", "tekton_task", "spec/volumes"),
    host_volumes("the volumes of a run", "tekton_task_run", "spec/podTemplate/volumes"),
    field_edit(
        "a sidecar of a task is privileged",
        "tekton_task",
        "spec/sidecars",
        [EVIL],
        "not-privileged",
    ),
    *(
        field_edit(
            f"the pods of a run on the host network ({field})",
            "tekton_pipeline_run",
            f"spec/{field}",
            value,
            "no-host-namespaces",
        )
        for field, value in (
            ("podTemplate", {"hostNetwork": True}),
            ("taskRunSpecs", [{"taskPodTemplate": {"hostNetwork": True}}]),
        )
    ),
    *(
        field_edit(
            f"the Spark property {name}",
            "spark_application",
            f"spec/sparkConf/{name}",
            "a",
            "kind-known",
        )
        for name in (
            "spark.kubernetes.namespace",
            "spark.kubernetes.executor.node.selector.kubernetes.io~hostname",
            "spark.kubernetes.driver.scheduler.name",
            "spark.kubernetes.scheduler.volcano.podGroupTemplateFile",
        )
    ),
    field_edit(
        "a run on the host network", "tekton_task_run", "spec/podTemplate/hostNetwork", True
    ),
    field_edit(
        "a run that executes as root",
        "tekton_task_run",
        f"spec/podTemplate/{CONTEXT}",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    # Spark
    privileged("a driver", "spark_application", f"spec/driver/{CONTEXT}"),
    privileged("an executor", "spark_application", f"spec/executor/{CONTEXT}"),
    latest_image("an application", "spark_application", "spec/image"),
    latest_image("a driver", "spark_application", "spec/driver/image"),
    latest_image("a scheduled application", "spark_scheduled", "spec/template/executor/image"),
    host_volumes("the volumes of an application", "spark_application", "spec/volumes"),
    field_edit(
        "an executor on the host network", "spark_application", "spec/executor/hostNetwork", True
    ),
    field_edit(
        "a driver sidecar is privileged",
        "spark_application",
        "spec/driver/sidecars",
        [EVIL],
        "not-privileged",
    ),
    field_edit(
        "a driver that runs as root",
        "spark_application",
        "spec/driver/podSecurityContext",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    field_edit(
        "a secret in an executor",
        "spark_application",
        "spec/executor/env",
        [{"name": "PASSWORD", "value": "correct horse"}],
        "no-literal-secrets",
    ),
    field_edit(
        "a secret in a driver's variable map",
        "spark_application",
        "spec/driver/envVars",
        {"PASSWORD": "correct horse"},
    ),
]
