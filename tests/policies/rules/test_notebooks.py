"""Rules for notebooks, with the objects that the stack builds and with other objects."""

from typing import Any

import pytest

from infra.manifests import Manifest
from tests.infra.jobs import job, objects
from tests.policies.harness import evaluate_rule

SERVER = ["jupyter", "lab", "--ip=0.0.0.0"]
FROM_SECRET = {"name": "JUPYTER_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}


def pod(command: list[str] = SERVER, **container: Any) -> Manifest:
    main = {"name": "notebook", "command": command, **container}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [main]},
    }


def with_token_file(source: Manifest) -> Manifest:
    """Return a notebook server that reads its token from a file in a volume."""
    notebook_objects = pod(
        env=[{"name": "JUPYTER_TOKEN_FILE", "value": "/secrets/token"}],
        volumeMounts=[{"name": "token", "mountPath": "/secrets"}],
    )
    notebook_objects["spec"]["volumes"] = [{"name": "token", **source}]
    return notebook_objects


def notebook(**changes: Any) -> list[Manifest]:
    return objects(job("notebook", **changes))


def notebook_without(flag: str) -> list[Manifest]:
    """Return the objects of a notebook, with a flag removed from its command."""
    notebook_objects = notebook()
    (container,) = notebook_objects[-1]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    container["command"] = [word for word in container["command"] if not word.startswith(flag)]
    return notebook_objects


def test_notebook_without_a_token_is_rejected() -> None:
    (violation,) = evaluate_rule("notebook-token", *notebook_without("--token-file"))
    assert "JUPYTER_TOKEN as valueFrom.secretKeyRef" in violation
    assert evaluate_rule("notebook-token", *notebook()) == []


def test_notebook_with_several_gpus_also_needs_a_token() -> None:
    assert evaluate_rule("notebook-token", *notebook(gpus_per_node=4)) == []
    notebook_objects = notebook_without("--token-file")
    notebook_objects[-1]["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": 4}
    }
    assert evaluate_rule("notebook-token", *notebook_objects)


def test_notebook_without_a_gpu_limit_is_rejected() -> None:
    notebook_objects = notebook()
    (container,) = notebook_objects[-1]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    del container["resources"]["limits"]["nvidia.com/gpu"]
    assert evaluate_rule("gpu-requests-equal-limits", *notebook_objects)
    del container["resources"]["requests"]["nvidia.com/gpu"]
    # Notebooks not built by the stack need a GPU only if the configuration requires one.
    roles = {"components": ["training", "serving", "interactive"]}
    assert evaluate_rule("gpu-limit-present", *notebook_objects, config=roles)
    assert evaluate_rule("gpu-limit-present", *notebook(), config=roles) == []
    for rule in ("gpu-requests-equal-limits", "gpu-limit-present"):
        assert evaluate_rule(rule, *notebook()) == []


@pytest.mark.parametrize(
    "manifest",
    [
        pod(env=[FROM_SECRET]),
        with_token_file({"secret": {"secretName": "a"}}),
        pod(["python3", "train.py", "--notebook"]),
        pod(["sh", "-c", "cat jupyter.txt"]),
        pod(["code-server", "--auth", "password"]),
        pod(env=[FROM_SECRET, {"name": "NOTEBOOK_ARGS", "value": "--no-browser"}]),
    ],
    ids=[
        *("token in a variable", "token in a file", "training program", "Jupyter in a file name"),
        *("editor with a password", "arguments in a variable"),
    ],
)
def test_token_from_a_secret_and_other_programs_are_accepted(manifest: Manifest) -> None:
    assert evaluate_rule("notebook-token", manifest) == []


@pytest.mark.parametrize(
    "manifest",
    [
        pod(),
        pod(env=[{"name": "JUPYTER_TOKEN", "value": ""}]),
        pod([*SERVER, "--NotebookApp.token="], env=[FROM_SECRET]),
        pod([*SERVER, "--IdentityProvider.token=''"], env=[FROM_SECRET]),
        pod([*SERVER, "--ServerApp.password", ""], env=[FROM_SECRET]),
        pod([*SERVER, "--ServerApp.allow_unauthenticated_access=True"], env=[FROM_SECRET]),
        pod(["sh", "-c", "exec jupyter lab --ServerApp.token='' --port=1"], env=[FROM_SECRET]),
        pod([*SERVER, "--ServerApp.allow_unauthenticated_access=true"], env=[FROM_SECRET]),
        pod(env=[FROM_SECRET, {"name": "NOTEBOOK_ARGS", "value": "--IdentityProvider.token=''"}]),
        pod(["sh", "-c", "cd /work;jupyter lab"]),
        pod(["sh", "-c", "cd /work&&'jupyter' lab"]),
        pod(["code-server", "--auth", "none"]),
        pod(["sh", "-c", "code serve-web --without-connection-token"]),
        pod(["openvscode-server", "--host=0.0.0.0", "--without-connection-token"]),
        pod(["marimo", "edit", "--no-token"]),
        pod(["start-notebook.sh"]),
        pod(["python3", "-m", "jupyterlab"]),
        pod(["/opt/conda/bin/jupyter-lab"]),
        with_token_file({"emptyDir": {}}),
        with_token_file({"secret": {"secretName": "a", "optional": True}}),
    ],
    ids=str,
)
def test_server_without_a_token_from_a_secret_is_rejected(manifest: Manifest) -> None:
    assert evaluate_rule("notebook-token", manifest)


@pytest.mark.parametrize(("priority", "is_accepted"), [(50, True), (100, False), (150, False)])
def test_notebook_must_have_a_lower_priority_than_training_in_its_queue(
    priority: int, is_accepted: bool
) -> None:
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in {"training": 100, "notebooks": priority}.items()
    ]
    training = objects(job("volcano"), run="training-0123abcd")
    notebook_objects = notebook()
    assert (
        evaluate_rule("notebook-preemptible", *notebook_objects, *training, *classes) == []
    ) is is_accepted
    spec = notebook_objects[-1]["spec"]
    for task in spec["tasks"]:
        spec["priorityClassName"] = task["template"]["spec"].pop("priorityClassName")
    assert (
        evaluate_rule("notebook-preemptible", *notebook_objects, *training, *classes) == []
    ) is is_accepted


def test_priority_of_the_gang_counts_as_the_priority_of_the_notebook() -> None:
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        for name, value in {"training": 100, "notebooks": 50}.items()
    ]
    training = objects(job("volcano"), run="training-0123abcd")
    notebook_objects = notebook()
    notebook_objects[-1]["spec"]["priorityClassName"] = "training"
    assert evaluate_rule("notebook-preemptible", *notebook_objects, *training, *classes)


def test_notebook_without_a_queue_needs_no_priority_class() -> None:
    assert evaluate_rule("notebook-preemptible", pod(env=[FROM_SECRET])) == []
