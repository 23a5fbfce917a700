"""Ephemeral storage of pods, which includes volumes on the node's disk."""

from typing import Any

import pytest

from tests.infra.examples import DIGEST, changed, good, problems

JOB = "training.jobs.digits"
SERVICE = "inference.services.digits"
VOLUMES = {
    "cache": {"path": "/cache", "scratch": "100Gi"},
    "more": {"path": "/more", "scratch": "512Mi"},
    "shared": {"path": "/shared", "claim": "checkpoints"},
}
HUB = {"model": "a/b", "revision": "0" * 40}
ARTIFACT = f"registry.example.com/models/digits@sha256:{DIGEST}"
CANARY = {"route": {"gateway": {"name": "public"}}}


def problems_with(path: str, **changes: Any) -> list[str]:
    """Return the problems of a job or service with changed settings."""
    values = good()
    section, table, key = path.split(".")
    merged = values[section][table][key] | changes
    return problems(
        changed(path, {name: value for name, value in merged.items() if value is not None})
    )


@pytest.mark.parametrize("path", [JOB, SERVICE])
def test_ephemeral_storage_includes_scratch_volumes(path: str) -> None:
    assert problems_with(path, volumes=VOLUMES) == []
    assert problems_with(path, volumes=VOLUMES, ephemeral_storage="103936Mi") == []
    assert problems_with(path, volumes=VOLUMES, ephemeral_storage="103935Mi") == [
        f"gpu-platform:{path} sets ephemeral_storage to 103935Mi, less than the volumes of a pod "
        "may use (/tmp 1Gi, volumes.cache 100Gi, volumes.more 512Mi), so pods could be evicted: "
        "set at least 103936Mi."
    ]


@pytest.mark.parametrize(
    ("service", "is_counted"),
    [
        ({"url": "s3://models/export"}, True),
        ({"url": "s3://models/all", "runtime": "triton", "fetch": None}, False),
        ({"source": {"artifact": ARTIFACT, "download": True}}, True),
        ({"source": {"artifact": ARTIFACT}, "fetch": None}, False),
        ({"source": {"hub": HUB}, "runtime": "vllm"}, True),
        ({"source": {"hub": {**HUB, "cache": "datasets"}}, "runtime": "vllm"}, False),
        (
            {
                "run": "digits-01234567",
                **CANARY,
                "canary": {"weight": 1, "url": "s3://models/export"},
            },
            True,
        ),
        (
            {
                "run": "digits-01234567",
                **CANARY,
                "canary": {"weight": 1, "source": {"artifact": ARTIFACT, "download": True}},
            },
            True,
        ),
        ({"run": "digits-01234567", "fetch": None}, False),
    ],
    ids=[
        "model from a URL",
        "URL read by the server",
        "downloaded artifact",
        "artifact as an image volume",
        "model from the Hub",
        "model from the Hub with a cache",
        "canary with a model from a URL",
        "canary with a downloaded artifact",
        "model on a claim",
    ],
)
def test_ephemeral_storage_includes_models_downloaded_to_the_node(
    service: dict[str, Any], is_counted: bool
) -> None:
    service_settings = {"job": None, "fetch": {"size": "20Gi"}, **service}
    assert problems_with(SERVICE, **service_settings, ephemeral_storage="21Gi") == []
    found = problems_with(SERVICE, **service_settings, ephemeral_storage="20Gi")
    assert found == (
        [
            f"gpu-platform:{SERVICE} sets ephemeral_storage to 20Gi, less than the volumes of a "
            "pod may use (/tmp 1Gi, fetch.size 20Gi), so pods could be evicted: set at least 21Gi."
        ]
        if is_counted
        else []
    )
