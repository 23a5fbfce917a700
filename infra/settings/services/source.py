"""Where the model of a service comes from: a run of this stack, or an object store."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from infra.settings.jobs.mounts import ReferenceSettings
from infra.settings.types import EnvironmentName, MemoryQuantity, Settings

_RUN: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?-[0-9a-f]{8}")
_URL: Final = re.compile(r"(s3|gs|az|https?)://[^\s?#@]+")


def _run_name(text: str) -> str:
    if not _RUN.fullmatch(text):
        raise ValueError(
            "must be the full name of a run, <job>-<8 digits>, as the output `runs` shows it"
        )
    return text


def _export_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(
            "must be the address of an export's folder without passwords, such as "
            "s3://bucket/digits-1a2b3c4d/export; gs://, az:// and https:// are known, too"
        )
    return text.rstrip("/")


RunName = Annotated[str, AfterValidator(_run_name)]
"""A run's name with its eight digits."""

ExportUrl = Annotated[str, AfterValidator(_export_url)]
"""Where the files of an export lie in an object store or behind a web server."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of an export's weights, as its manifest and the server's metadata have it."""


class FetchSettings(Settings):
    """How pods fetch an export by its `url`."""

    size: MemoryQuantity = Field(
        default="2Gi",
        description="room for the export on the node's disk; a pod that needs more ends",
    )
    env: dict[EnvironmentName, str] = Field(
        default={},
        description="variables for the object store, such as AWS_REGION and AWS_ENDPOINT_URL",
    )
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={}, description="those that stand in Secrets, such as AWS_SECRET_ACCESS_KEY"
    )
