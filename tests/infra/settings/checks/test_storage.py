"""Access modes of the claims that several pods mount."""

from typing import Any

import pytest

from tests.infra import sweeps
from tests.infra.examples import good, problems
from tests.infra.jobs import configuration, job

ONCE = "ReadWriteOnce"
READ = "ReadOnlyMany"
MANY = "ReadWriteMany"
STEP = {"command": ["python3", "prepare.py"]}


def claim(mode: str) -> dict[str, Any]:
    """Return a claim with an access mode."""
    return {"size": "10Gi", "storage_class": "shared", "access_modes": [mode]}


def found_for(values: dict[str, Any], name: str, mode: str) -> list[str]:
    """Return the problems if a claim has an access mode."""
    values["storage"]["claims"][name] = claim(mode)
    return problems(values)


def fitting(values: dict[str, Any], name: str) -> list[str]:
    """Return the access modes that are accepted for a claim."""
    return [mode for mode in (ONCE, READ, MANY) if not found_for(values, name, mode)]


@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({"nodes": 2}, [READ, MANY]),
        ({"nodes": 1}, [ONCE, READ, MANY]),
        ({"nodes": 1, "steps": {"prepare": STEP}}, [READ, MANY]),
        ({"nodes": 1, "steps": {"prepare": {**STEP, "writes_datasets": True}}}, [MANY]),
    ],
)
def test_datasets_of_several_pods_can_be_mounted_on_several_nodes(
    changes: dict[str, Any], modes: list[str]
) -> None:
    assert fitting(configuration(job("volcano", **changes)), "datasets") == modes


def test_checkpoints_of_a_single_pod_can_be_written() -> None:
    values = configuration(job("volcano", nodes=1))
    assert fitting(values, "checkpoints") == [ONCE, MANY]
    assert found_for(values, "checkpoints", READ)[-1] == (
        "gpu-platform:training.jobs.job.checkpoints is 'checkpoints', whose access_modes are "
        "ReadOnlyMany, but one pod mounts it and may write to it: it needs ReadWriteMany or "
        "ReadWriteOnce or ReadWriteOncePod."
    )


def test_the_home_of_a_notebook_can_be_written() -> None:
    values = configuration(job("notebook"))
    values["training"]["jobs"]["job"]["notebook"]["home"] = "homes"
    assert fitting(values, "homes") == [ONCE, MANY]


def test_the_error_names_the_datasets_and_the_access_modes() -> None:
    assert found_for(configuration(job("volcano")), "datasets", ONCE) == [
        "gpu-platform:training.jobs.job.datasets is 'datasets', whose access_modes are "
        "ReadWriteOnce, but several pods mount it: it needs ReadWriteMany or ReadOnlyMany."
    ]


def test_all_claims_of_a_sweep_are_mounted_by_parallel_trials() -> None:
    volumes = {"extra": {"path": "/extra", "claim": "extra"}}
    values = sweeps.values(job={"nodes": 1, "volumes": volumes})
    values["storage"]["claims"]["extra"] = claim(MANY)
    assert fitting(values, "datasets") == [READ, MANY]
    values["storage"]["claims"]["datasets"] = claim(MANY)
    assert fitting(values, "extra") == [MANY]


def served(**changes: Any) -> dict[str, Any]:
    """Return a stack with one service that serves a model from a claim."""
    values = good()
    values["inference"]["services"]["digits"] = {
        "cpu": "500m",
        "memory": "2Gi",
        "source": {"claim": {"name": "models"}},
        **changes,
    }
    values["storage"]["claims"] |= {"models": claim(MANY), "extra": claim(MANY)}
    return values


HUB = {"hub": {"model": "a/b", "revision": "0" * 40, "cache": "extra"}}


def canary(replicas: int, source: dict[str, Any]) -> dict[str, Any]:
    """Return a canary with its own model, and the route that it needs."""
    return {
        "route": {"gateway": {"name": "public"}},
        "canary": {"weight": 10, "replicas": replicas, "source": source},
    }


@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({"volumes": {"x": {"path": "/x", "claim": "extra"}}}, [ONCE, MANY]),
        ({"replicas": 4, "volumes": {"x": {"path": "/x", "claim": "extra"}}}, [MANY]),
        (
            {"replicas": 4, "volumes": {"x": {"path": "/x", "claim": "extra", "read_only": True}}},
            [READ, MANY],
        ),
        ({"replicas": 4, "source": {"claim": {"name": "extra"}}}, [READ, MANY]),
        (canary(4, {"claim": {"name": "extra"}}), [READ, MANY]),
        (canary(1, {"claim": {"name": "extra"}}), [ONCE, READ, MANY]),
        ({"runtime": "vllm", "replicas": 2, "source": HUB}, [MANY]),
        ({"runtime": "vllm", **canary(2, HUB)}, [MANY]),
    ],
    ids=[
        "volume of one pod",
        "volume",
        "read-only volume",
        "model",
        "model of the canary",
        "model of one canary",
        "cache",
        "cache of the canary",
    ],
)
def test_claims_of_several_server_pods_can_be_mounted_on_several_nodes(
    changes: dict[str, Any], modes: list[str]
) -> None:
    assert fitting(served(**changes), "extra") == modes


def test_the_error_names_the_setting_of_the_claim_and_the_number_of_pods() -> None:
    values = served(**canary(4, {"claim": {"name": "extra"}}))
    assert found_for(values, "extra", ONCE) == [
        "gpu-platform:inference.services.digits.canary.source is 'extra', whose access_modes are "
        "ReadWriteOnce, but up to 4 pods mount it: it needs ReadWriteMany or ReadOnlyMany."
    ]
