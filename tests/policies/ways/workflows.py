"""Ways to run a container in a workflow, a task or a Spark application."""

from tests.policies.ways.containers import (
    CONTEXT,
    EVIL,
    KUBERNETES_POD,
    hidden,
    host,
    latest,
    privileged,
)

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
        "a container of a set",
        "argo_workflow_template",
        f"spec/templates/0/containerSet/containers/0/{CONTEXT}",
    ),
    latest(
        "the container of a workflow", "argo_workflow_steps", "spec/templates/1/container/image"
    ),
    latest("the script of a workflow", "argo_workflow_steps", "spec/templates/2/script/image"),
    host("the volumes of a workflow", "argo_workflow_steps", "spec/volumes"),
    host("the volumes of a step", "argo_workflow_steps", "spec/templates/1/volumes"),
    hidden(
        "a sidecar of a step is privileged",
        "argo_workflow_steps",
        "spec/templates/1/sidecars",
        [EVIL],
        "not-privileged",
    ),
    hidden(
        "an init container of a step is privileged",
        "argo_workflow_steps",
        "spec/templates/1/initContainers",
        [EVIL],
        "not-privileged",
    ),
    hidden("a workflow on the node's network", "argo_workflow_steps", "spec/hostNetwork", True),
    hidden(
        "a workflow of root",
        "argo_workflow_steps",
        f"spec/{CONTEXT}",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    hidden(
        "a patch of the pod as text",
        "argo_workflow_steps",
        "spec/podSpecPatch",
        '{"hostPID": true}',
    ),
    hidden(
        "a patch of one step's pod as text",
        "argo_workflow_steps",
        "spec/templates/1/podSpecPatch",
        '{"hostPID": true}',
    ),
    hidden(
        "defaults of all steps", "argo_workflow_steps", "spec/templateDefaults", {"container": EVIL}
    ),
    hidden(
        "a step that applies a manifest as text",
        "argo_workflow_steps",
        "spec/templates/1",
        {"name": "download", "resource": {"action": "create", "manifest": str(KUBERNETES_POD)}},
    ),
    hidden(
        "a workflow with the token of the API",
        "argo_workflow_steps",
        "spec/templates/1/container/env",
        [{"name": "PASSWORD", "value": "correct horse"}],
        "no-literal-secrets",
    ),
    # Tekton
    privileged("a step", "tekton_task", f"spec/steps/0/{CONTEXT}"),
    privileged(
        "a step inside a pipeline", "tekton_pipeline", f"spec/tasks/1/taskSpec/steps/0/{CONTEXT}"
    ),
    privileged(
        "a step inside a run",
        "tekton_pipeline_run",
        f"spec/pipelineSpec/tasks/0/taskSpec/steps/0/{CONTEXT}",
    ),
    privileged("the template of all steps", "tekton_task", f"spec/stepTemplate/{CONTEXT}"),
    latest("a step", "tekton_task", "spec/steps/0/image"),
    host("the volumes of a task", "tekton_task", "spec/volumes"),
    host("the volumes of a run", "tekton_task_run", "spec/podTemplate/volumes"),
    hidden(
        "a sidecar of a task is privileged",
        "tekton_task",
        "spec/sidecars",
        [EVIL],
        "not-privileged",
    ),
    hidden("a run on the node's network", "tekton_task_run", "spec/podTemplate/hostNetwork", True),
    hidden(
        "a run of root",
        "tekton_task_run",
        f"spec/podTemplate/{CONTEXT}",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    # Spark
    privileged("a driver", "spark_application", f"spec/driver/{CONTEXT}"),
    privileged("an executor", "spark_application", f"spec/executor/{CONTEXT}"),
    latest("an application", "spark_application", "spec/image"),
    latest("a driver", "spark_application", "spec/driver/image"),
    latest("a scheduled application", "spark_scheduled", "spec/template/executor/image"),
    host("the volumes of an application", "spark_application", "spec/volumes"),
    hidden(
        "an executor on the node's network", "spark_application", "spec/executor/hostNetwork", True
    ),
    hidden(
        "a sidecar of a driver is privileged",
        "spark_application",
        "spec/driver/sidecars",
        [EVIL],
        "not-privileged",
    ),
    hidden(
        "a driver of root",
        "spark_application",
        "spec/driver/podSecurityContext",
        {"runAsNonRoot": False, "runAsUser": 0},
        "run-as-non-root",
    ),
    hidden(
        "a secret of an executor",
        "spark_application",
        "spec/executor/env",
        [{"name": "PASSWORD", "value": "correct horse"}],
        "no-literal-secrets",
    ),
    hidden(
        "a secret of a driver in a map",
        "spark_application",
        "spec/driver/envVars",
        {"PASSWORD": "correct horse"},
    ),
]
