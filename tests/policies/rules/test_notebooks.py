"""Rules about notebooks, with the objects that the stack builds and with those of others."""

from typing import Any

import pytest

from infra.manifests import Manifest
from tests.infra.jobs import job, objects
from tests.policies.harness import judge

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


def in_file(source: Manifest) -> Manifest:
    """A server with its token in the file of a volume."""
    made = pod(
        env=[{"name": "JUPYTER_TOKEN_FILE", "value": "/secrets/token"}],
        volumeMounts=[{"name": "token", "mountPath": "/secrets"}],
    )
    made["spec"]["volumes"] = [{"name": "token", **source}]
    return made


def notebook(**changes: Any) -> list[Manifest]:
    return objects(job("notebook", **changes))


def without(command: str) -> list[Manifest]:
    """The objects of a notebook whose command lacks a flag."""
    made = notebook()
    (container,) = made[-1]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    container["command"] = [word for word in container["command"] if not word.startswith(command)]
    return made


def test_a_notebook_with_a_route_but_without_a_token_is_refused() -> None:
    (violation,) = judge("notebook-token", *without("--token-file"))
    assert "JUPYTER_TOKEN as valueFrom.secretKeyRef" in violation
    assert judge("notebook-token", *notebook()) == []


def test_a_notebook_of_several_gpus_needs_a_token_too() -> None:
    assert judge("notebook-token", *notebook(gpus_per_node=4)) == []
    made = without("--token-file")
    made[-1]["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"] = {
        "limits": {"nvidia.com/gpu": 4}
    }
    assert judge("notebook-token", *made)


def test_a_notebook_without_a_gpu_limit_is_refused() -> None:
    made = notebook()
    (container,) = made[-1]["spec"]["tasks"][0]["template"]["spec"]["containers"]
    del container["resources"]["limits"]["nvidia.com/gpu"]
    assert judge("gpu-requests-equal-limits", *made)
    del container["resources"]["requests"]["nvidia.com/gpu"]
    # Notebooks of other origin may do without a GPU, unless the configuration demands one.
    roles = {"components": ["training", "serving", "interactive"]}
    assert judge("gpu-limit-present", *made, config=roles)
    assert judge("gpu-limit-present", *notebook(), config=roles) == []
    for rule in ("gpu-requests-equal-limits", "gpu-limit-present"):
        assert judge(rule, *notebook()) == []


@pytest.mark.parametrize(
    "fine",
    [
        pod(env=[FROM_SECRET]),
        in_file({"secret": {"secretName": "a"}}),
        pod(["python3", "train.py", "--notebook"]),
        pod(["sh", "-c", "cat jupyter.txt"]),
    ],
    ids=["variable", "file", "training", "file name"],
)
def test_a_token_from_a_secret_and_other_programs_are_accepted(fine: Manifest) -> None:
    assert judge("notebook-token", fine) == []


@pytest.mark.parametrize(
    "bad",
    [
        pod(),
        pod(env=[{"name": "JUPYTER_TOKEN", "value": ""}]),
        pod([*SERVER, "--NotebookApp.token="], env=[FROM_SECRET]),
        pod([*SERVER, "--IdentityProvider.token=''"], env=[FROM_SECRET]),
        pod([*SERVER, "--ServerApp.password", ""], env=[FROM_SECRET]),
        pod([*SERVER, "--ServerApp.allow_unauthenticated_access=True"], env=[FROM_SECRET]),
        pod(["sh", "-c", "exec jupyter lab --ServerApp.token='' --port=1"], env=[FROM_SECRET]),
        pod(["start-notebook.sh"]),
        pod(["python3", "-m", "jupyterlab"]),
        pod(["/opt/conda/bin/jupyter-lab"]),
        in_file({"emptyDir": {}}),
        in_file({"secret": {"secretName": "a", "optional": True}}),
    ],
    ids=str,
)
def test_a_server_without_a_token_from_a_secret_is_refused(bad: Manifest) -> None:
    assert judge("notebook-token", bad)


@pytest.mark.parametrize(("priority", "fine"), [(50, True), (100, False), (150, False)])
def test_a_notebook_has_a_lower_priority_than_training_in_its_queue(
    priority: int, fine: bool
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
    made = notebook()
    assert (judge("notebook-preemptible", *made, *training, *classes) == []) is fine
    spec = made[-1]["spec"]
    for task in spec["tasks"]:
        spec["priorityClassName"] = task["template"]["spec"].pop("priorityClassName")
    assert (judge("notebook-preemptible", *made, *training, *classes) == []) is fine


def test_the_priority_of_a_gang_is_that_of_a_notebook_too() -> None:
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
    made = notebook()
    made[-1]["spec"]["priorityClassName"] = "training"
    assert judge("notebook-preemptible", *made, *training, *classes)


def test_a_notebook_outside_of_a_queue_needs_no_priority() -> None:
    assert judge("notebook-preemptible", pod(env=[FROM_SECRET])) == []
