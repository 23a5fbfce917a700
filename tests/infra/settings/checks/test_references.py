"""References to settings that exist but cannot be used."""

from typing import Any

import pytest

from infra.settings.images import PROJECT_ROOT
from tests.infra import sweeps
from tests.infra.examples import changed, good, problems

JOB = "training.jobs.digits"
SERVICE = "inference.services.digits"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (
            {
                "kind": "notebook",
                "hyperparameters": None,
                "nodes": 1,
                "notebook": {"home": "home", "token_secret": "token"},
            },
            "which is a notebook, so it exports no model",
        ),
        (
            {"schedule": {"cron": "0 3 * * *", "time_zone": "Etc/UTC", "image": "training"}},
            "which has a schedule, so it has no single run",
        ),
    ],
    ids=["notebook", "schedule"],
)
def test_error_explains_why_a_job_cannot_be_served(values: dict[str, Any], reason: str) -> None:
    job = good()["training"]["jobs"]["digits"] | values
    found = problems(changed(JOB, job))
    [sentence] = [each for each in found if each.startswith(f"gpu-platform:{SERVICE}.job ")]
    assert f"is 'digits', {reason}" in sentence
    assert "run" in sentence


@pytest.mark.parametrize(
    ("other_setting", "monitoring", "key", "owner"),
    [
        (
            ("gpu.namespace", "gpu-metrics"),
            {"prometheus": "plain"},
            "monitoring.dcgm_exporter",
            "gpu",
        ),
        (
            ("tenancy.namespace", "gpu-metrics"),
            {"prometheus": "operator"},
            "tenancy",
            "monitoring.dcgm_exporter",
        ),
        (
            ("tenancy.namespace", "monitoring"),
            {"prometheus": "operator", "kube_prometheus_stack": {"install": True}},
            "tenancy",
            "monitoring.kube_prometheus_stack",
        ),
        (
            ("volcano.namespace", "monitoring"),
            {"prometheus": "operator", "kube_prometheus_stack": {"install": True}},
            "monitoring.kube_prometheus_stack",
            "volcano",
        ),
    ],
)
def test_monitoring_namespaces_cannot_be_shared_with_other_sections(
    other_setting: tuple[str, str], monitoring: dict[str, Any], key: str, owner: str
) -> None:
    values = changed(*other_setting)
    assert problems(values) == []
    values["monitoring"] = monitoring
    assert problems(values) == [
        f"gpu-platform:{key}.namespace is {other_setting[1]!r}, which is also the value of "
        f"gpu-platform:{owner}.namespace: use different names."
    ]


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("gpu", {}),
        ("gpu.operator", {"provider": "gpu-operator"}),
        ("volcano", {}),
        (
            "monitoring.kube_prometheus_stack",
            {"prometheus": "operator", "scraped_from": ["kube-system"]},
        ),
        ("monitoring.dcgm_exporter", {"prometheus": "plain"}),
    ],
)
def test_sections_cannot_create_kubernetes_system_namespaces(
    section: str, settings: dict[str, Any]
) -> None:
    top, _, inner = section.partition(".")
    invalid = {"namespace": "kube-system"}
    if inner:
        invalid = {inner: {**invalid, **({"install": True} if top == "monitoring" else {})}}
    values = changed(top, {**good().get(top, {}), **settings, **invalid})
    assert problems(values) == [
        f"gpu-platform:{section}.namespace is 'kube-system', which belongs to Kubernetes: use a "
        "namespace that only the stack uses."
    ]


def test_existing_programs_can_be_in_a_kubernetes_system_namespace() -> None:
    values = changed("gpu", {"provider": "existing"})
    values["volcano"] |= {"install": False, "namespace": "kube-system"}
    assert problems(values) == []


@pytest.mark.parametrize(
    "monitoring",
    [{"prometheus": "none"}, {"prometheus": "operator", "dcgm_exporter": {"install": False}}],
)
def test_namespace_of_an_uninstalled_exporter_can_be_used(monitoring: dict[str, Any]) -> None:
    values = changed("tenancy.namespace", "gpu-metrics")
    values["monitoring"] = monitoring
    assert problems(values) == []


CANARY = {"weight": 10, "run": "digits-01234567"}
ROLLBACK = {"rollback": {"prometheus": "http://prometheus:9090"}}


def with_program(values: dict[str, Any]) -> dict[str, Any]:
    """Add the images for the stack's own programs."""
    images = values["images"]["workloads"]
    images |= {"recorder": images["training"], "sweeps": images["training"]}
    return values


def with_canary(canary: dict[str, Any]) -> dict[str, Any]:
    """Return a stack whose service has a canary."""
    values = with_program(good())
    values["inference"]["services"]["digits"] |= {
        "route": {"gateway": {"name": "public"}},
        "canary": canary,
    }
    return values


@pytest.mark.parametrize(
    ("values", "service_key", "reason"),
    [
        (
            with_canary(CANARY),
            "digits-canary",
            f"{SERVICE}.canary would create the Deployment 'digits-canary', which ",
        ),
        (
            with_canary(CANARY | ROLLBACK),
            "digits-rollback",
            f"{SERVICE}.canary.rollback would create the Deployment 'digits-rollback', which ",
        ),
        (
            with_program(changed("logs", {"recorder": {}})),
            "failure-recorder",
            "logs.recorder would create the Deployment 'failure-recorder', which ",
        ),
        (
            sweeps.values(),
            "sweep-controller",
            "training.sweeps would create the Deployment 'sweep-controller', which ",
        ),
    ],
    ids=["canary", "rollback", "recorder", "sweeps"],
)
def test_service_name_must_not_collide_with_another_deployment(
    values: dict[str, Any], service_key: str, reason: str
) -> None:
    assert problems(values) == []
    services = values["inference"]["services"]
    services[service_key] = {"run": "digits-01234567", "cpu": "1", "memory": "2Gi"}
    [sentence] = problems(values)
    assert sentence.startswith(
        f"gpu-platform:{reason}gpu-platform:inference.services.{service_key} "
    )
    assert "use another key" in sentence


@pytest.mark.parametrize(
    ("run", "collides"), [("digits", True), ("final-digits", True), ("b", False)]
)
def test_step_of_a_run_must_not_collide_with_the_template_of_a_sweep(
    run: str, collides: bool
) -> None:
    values = sweeps.values()
    steps = {"sweep": {"command": ["x"]}}
    values["training"]["jobs"]["job"] = good()["training"]["jobs"]["digits"] | {
        "run": run,
        "steps": steps,
    }
    expected = (
        "gpu-platform:training.jobs.job.run would create the JobTemplate 'digits-sweep', which "
        "gpu-platform:training.sweeps.digits also creates: use another `run`."
    )
    assert problems(values) == ([expected] if collides else [])


@pytest.mark.parametrize(
    ("run", "claim", "collides"),
    [
        ("digits-sweep", "checkpoints", True),
        ("digits-sweep", "datasets", False),
        ("sweep", "checkpoints", False),
    ],
)
def test_run_must_not_share_the_directory_of_a_sweep(run: str, claim: str, collides: bool) -> None:
    values = sweeps.values()
    job = {**values["training"]["sweeps"]["digits"]["job"], "run": run, "checkpoints": claim}
    values["training"]["jobs"]["job"] = job
    expected = (
        "gpu-platform:training.jobs.job.run would create the directory 'checkpoints/digits-sweep', "
        "which gpu-platform:training.sweeps.digits also creates: use another `run`."
    )
    assert problems(values) == ([expected] if collides else [])


HOME = {"home": "checkpoints", "token_secret": "token"}
NOTEBOOK = {"hyperparameters": None, "nodes": 1, "notebook": HOME}
ROUTE = {"gateway": {"name": "public"}, "path": "/digits"}
COMMAND = {"command": ["python3", "program.py"], "hyperparameters": None}


@pytest.mark.parametrize(
    ("changes", "collides"),
    [
        ({"kind": "volcano"}, True),
        ({"kind": "volcano", "nodes": 1}, False),
        ({"kind": "volcano", "steps": {"prepare": {"command": ["x"]}}}, False),
        ({"kind": "indexed"}, True),
        ({"kind": "indexed", "nodes": 1}, False),
        ({"kind": "jobset", "nodes": 1}, True),
        ({"kind": "plain", "nodes": 1, **COMMAND}, True),
        ({"kind": "pytorch"}, False),
        ({"kind": "notebook", **NOTEBOOK}, False),
        ({"kind": "notebook", **NOTEBOOK, "notebook": {**HOME, "route": ROUTE}}, True),
    ],
)
def test_service_of_a_run_must_not_collide_with_an_inference_service(
    changes: dict[str, Any], collides: bool
) -> None:
    job = good()["training"]["jobs"]["digits"] | {"run": "digits"} | changes
    values = changed(JOB, {key: value for key, value in job.items() if value is not None})
    values["inference"]["services"]["digits"] = {
        "run": "digits-01234567",
        "cpu": "1",
        "memory": "2Gi",
    }
    expected = (
        f"gpu-platform:{JOB}.run would create the Service 'digits', which "
        f"gpu-platform:{SERVICE} also creates: use another `run`."
    )
    assert problems(values) == ([expected] if collides else [])


@pytest.mark.parametrize(
    ("dockerfile", "source", "rejected_parts"),
    [
        ("training/Dockerfile", "recorder/../workload", []),
        ("training/Dockerfile", "..", [".sources contains '..'"]),
        ("training/Dockerfile", __file__, []),
        (
            str(PROJECT_ROOT.with_name("Dockerfile")),
            "/etc/hosts",
            [".dockerfile is ", ".sources contains '/etc/hosts'"],
        ),
    ],
)
def test_images_can_only_be_built_from_files_in_the_checkout(
    dockerfile: str, source: str, rejected_parts: list[str]
) -> None:
    build = {"dockerfile": dockerfile, "base_image": "python:3.13", "sources": [source]}
    values = good()
    values["images"]["registry"] = "registry.example.com"
    values["images"]["workloads"]["other"] = {"build": build}
    found = problems(values)
    assert len(found) == len(rejected_parts)
    for sentence, part in zip(found, rejected_parts, strict=True):
        assert sentence.startswith(f"gpu-platform:images.workloads.other.build{part}")
