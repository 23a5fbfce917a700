"""Access modes of claims that several pods mount."""

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


def problems_with_mode(values: dict[str, Any], name: str, mode: str) -> list[str]:
    """Return the problems if a claim has only this access mode."""
    values["storage"]["claims"][name] = claim(mode)
    return problems(values)


def accepted_modes(values: dict[str, Any], name: str) -> list[str]:
    """Return the access modes that are accepted for a claim."""
    return [mode for mode in (ONCE, READ, MANY) if not problems_with_mode(values, name, mode)]


@pytest.mark.parametrize(
    ("changes", "modes"),
    [
        ({"nodes": 2}, [READ, MANY]),
        ({"nodes": 1}, [ONCE, READ, MANY]),
        ({"nodes": 1, "steps": {"prepare": STEP}}, [READ, MANY]),
        ({"nodes": 1, "steps": {"prepare": {**STEP, "writes_datasets": True}}}, [MANY]),
    ],
)
def test_datasets_for_several_pods_need_a_shared_access_mode(
    changes: dict[str, Any], modes: list[str]
) -> None:
    assert accepted_modes(configuration(job("volcano", **changes)), "datasets") == modes


def test_checkpoints_of_a_single_pod_need_a_writable_claim() -> None:
    values = configuration(job("volcano", nodes=1))
    assert accepted_modes(values, "checkpoints") == [ONCE, MANY]
    assert problems_with_mode(values, "checkpoints", READ)[-1] == (
        "gpu-platform:training.jobs.job.checkpoints is 'checkpoints', whose access_modes are "
        "ReadOnlyMany, but one pod mounts it and may write to it: the claim needs "
        "ReadWriteMany, ReadWriteOnce or ReadWriteOncePod."
    )


def test_notebook_home_needs_a_writable_claim() -> None:
    values = configuration(job("notebook"))
    values["training"]["jobs"]["job"]["notebook"]["home"] = "homes"
    assert accepted_modes(values, "homes") == [ONCE, MANY]


def test_error_names_the_datasets_claim_and_its_access_modes() -> None:
    assert problems_with_mode(configuration(job("volcano")), "datasets", ONCE) == [
        "gpu-platform:training.jobs.job.datasets is 'datasets', whose access_modes are "
        "ReadWriteOnce, but several pods mount it: the claim needs ReadWriteMany or ReadOnlyMany."
    ]


def test_claims_of_parallel_trials_need_a_shared_access_mode() -> None:
    volumes = {"extra": {"path": "/extra", "claim": "extra"}}
    values = sweeps.values(job={"nodes": 1, "volumes": volumes})
    values["storage"]["claims"]["extra"] = claim(MANY)
    assert accepted_modes(values, "datasets") == [READ, MANY]
    values["storage"]["claims"]["datasets"] = claim(MANY)
    assert accepted_modes(values, "extra") == [MANY]


def serving_from_claim(**changes: Any) -> dict[str, Any]:
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
    """Return the settings for a canary with a separate model, and for a route."""
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
        "writable volume of one pod",
        "writable volume of several pods",
        "read-only volume of several pods",
        "model of several pods",
        "model of several canary pods",
        "model of one canary pod",
        "cache of several pods",
        "cache of several canary pods",
    ],
)
def test_claims_for_several_server_pods_need_a_shared_access_mode(
    changes: dict[str, Any], modes: list[str]
) -> None:
    assert accepted_modes(serving_from_claim(**changes), "extra") == modes


def test_error_names_the_setting_and_the_number_of_pods() -> None:
    values = serving_from_claim(**canary(4, {"claim": {"name": "extra"}}))
    assert problems_with_mode(values, "extra", ONCE) == [
        "gpu-platform:inference.services.digits.canary.source is 'extra', whose access_modes are "
        "ReadWriteOnce, but up to 4 pods mount it: the claim needs ReadWriteMany or ReadOnlyMany."
    ]
