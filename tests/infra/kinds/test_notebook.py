from typing import Any

import pytest

from infra.manifests import Manifest
from infra.pods import GpuNodes
from infra.settings import validate
from infra.settings.training.job import TrainingJobSettings
from infra.training_run import TrainingJobArgs, run_name
from tests.infra.examples import TRAINING_IMAGE, problems
from tests.infra.jobs import configuration, job, kind_of, mandatory_violations, objects, problems_of

NOTEBOOK: dict[str, Any] = job("notebook")["notebook"]


def spec(**changes: Any) -> Manifest:
    found: Manifest = kind_of(job("notebook", **changes), "Job")["spec"]
    return found


def pod(**changes: Any) -> Manifest:
    (task,) = spec(**changes)["tasks"]
    assert task["replicas"] == 1
    found: Manifest = task["template"]["spec"]
    return found


def with_notebook(**changes: Any) -> dict[str, Any]:
    return job("notebook", notebook={**NOTEBOOK, **changes})


def test_notebook_is_a_queued_gang_of_one_pod_with_gpus_and_shared_memory() -> None:
    job_spec = spec(gpus_per_node=1, shm="2Gi")
    assert (job_spec["queue"], job_spec["minAvailable"]) == ("research", 1)
    built = pod(gpus_per_node=1, shm="2Gi")
    (container,) = built["containers"]
    assert container["command"][:3] == ["python3", "-m", "notebooks"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert built["volumes"][0]["emptyDir"]["sizeLimit"] == "2Gi"
    assert built["priorityClassName"] == "notebooks"


def test_finished_notebook_is_suspended_and_an_evicted_one_restarted() -> None:
    actions = {event: p["action"] for p in spec()["policies"] for event in p["events"]}
    assert actions == {
        "PodEvicted": "RestartJob",
        "PodFailed": "AbortJob",
        "TaskCompleted": "AbortJob",
    }


def test_home_directory_is_on_the_claim_and_named_after_the_job() -> None:
    built = pod()
    (container,) = built["containers"]
    env = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert env["HOME"] == "/home/job"
    assert "--home=/home/job" in container["command"]
    (home,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/home")
    (claim,) = (volume for volume in built["volumes"] if volume["name"] == home["name"])
    assert claim["persistentVolumeClaim"] == {"claimName": "checkpoints"}


def test_token_is_only_in_a_mounted_secret() -> None:
    built = pod()
    (container,) = built["containers"]
    (volume,) = (volume for volume in built["volumes"] if volume["name"] == "notebook-token")
    assert volume["secret"] == {"secretName": "anna", "defaultMode": 0o440}
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "notebook-token")
    assert mount["readOnly"]
    assert f"--token-file={mount['mountPath']}/token" in container["command"]
    assert not any("valueFrom" in v and "secretKeyRef" in v["valueFrom"] for v in container["env"])


def test_route_points_to_the_pod_and_keeps_the_path_prefix() -> None:
    service, policy, route, built = objects(job("notebook"))
    labels = built["spec"]["tasks"][0]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert policy["spec"]["podSelector"]["matchLabels"] == service["spec"]["selector"]
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == service["metadata"]["name"]
    assert rule["backendRefs"][0]["port"] == service["spec"]["ports"][0]["port"]
    assert "filters" not in rule
    (container,) = pod()["containers"]
    assert rule["matches"][0]["path"]["value"] == "/anna"
    assert "--base-url=/anna/" in container["command"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/anna/api"
    assert [port["name"] for port in container["ports"]] == ["http"]
    (source,) = policy["spec"]["ingress"]
    assert "gateways" in str(source["from"])


def test_notebook_without_a_route_has_no_service() -> None:
    assert [each["kind"] for each in objects(with_notebook(route=None))] == ["Job"]


def test_notebooks_with_one_or_several_gpus_violate_no_mandatory_rule() -> None:
    assert mandatory_violations(job("notebook", gpus_per_node=1)) == []
    assert mandatory_violations(job("notebook", gpus_per_node=4)) == []


def test_notebook_pods_have_the_interactive_workload_label() -> None:
    (task,) = spec()["tasks"]
    assert task["template"]["metadata"]["labels"]["gpu-platform.dev/workload"] == "interactive"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"notebook": None}, "has no notebook settings: set notebook.home and notebook.token"),
        ({"nodes": 2}, "sets nodes to 2, but a notebook is a single pod"),
        ({"command": ["jupyter", "lab"]}, "sets command, but kind 'notebook' starts JupyterLab"),
        ({"hyperparameters": {"model": "digits-net"}}, "which kind 'notebook' does not support"),
        ({"on_change": "keep"}, "two notebooks would then share a home"),
        ({"env": {"JUPYTER_TOKEN": "x"}}, "sets JUPYTER_TOKEN, which kind 'notebook' determines"),
        ({"env_from": {"HOME": {"secret": "a", "key": "b"}}}, "sets HOME"),
        ({"volumes": {"x": {"path": "/home/x", "scratch": "1Gi"}}}, "has a volume at /home/x"),
        ({"volumes": {"x": {"path": "/secrets", "scratch": "1Gi"}}}, "has a volume at /secrets"),
        (
            {"volumes": {"notebook-home": {"path": "/x", "scratch": "1Gi"}}},
            "'notebook-home', which is a reserved name",
        ),
        ({"notebook": {**NOTEBOOK, "home": "nowhere"}}, "notebook.home is 'nowhere'"),
        ({"notebook": {**NOTEBOOK, "idle_minutes": 0}}, "idle_minutes"),
        (
            {"notebook": {**NOTEBOOK, "route": {"gateway": {"name": "public"}}}},
            "has neither hostnames nor path",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_notebook_settings_are_rejected(changes: dict[str, Any], text: str) -> None:
    assert any(text in problem for problem in problems_of(job("notebook", **changes)))


def test_notebook_settings_are_rejected_for_other_kinds() -> None:
    (problem,) = problems_of(job("volcano", notebook=NOTEBOOK))
    assert "which kind 'volcano' does not support: set kind notebook" in problem


def test_notebook_cannot_be_served() -> None:
    values = configuration(job("notebook"))
    values["inference"] = {"services": {"digits": {"job": "job", "cpu": 1, "memory": "2Gi"}}}
    (problem,) = problems(values)
    assert "services.digits.job is 'job'" in problem


def test_notebook_without_an_image_adds_a_notice() -> None:
    from infra.settings.notices import notices

    values = configuration(job("notebook"))
    assert any("needs JupyterLab in the image" in text for text in notices(validate(values)))


def test_changed_notebook_replaces_the_previous_one() -> None:
    first = TrainingJobSettings.model_validate(job("notebook"))
    second = TrainingJobSettings.model_validate(job("notebook", memory="32Gi"))
    assert not first.outlives_change
    assert _run_name(first) != _run_name(second)


def _run_name(settings: TrainingJobSettings) -> str:
    return run_name(
        TrainingJobArgs(
            key="anna",
            job=settings,
            namespace="ml",
            image=TRAINING_IMAGE,
            image_identity=TRAINING_IMAGE,
            gpu_nodes=GpuNodes(resource="nvidia.com/gpu"),
            claims={},
        )
    )
