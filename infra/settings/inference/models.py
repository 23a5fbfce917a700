"""Sources of models, from which services load their weights."""

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from infra.settings.types import (
    DnsLabel,
    EnvironmentName,
    MemoryQuantity,
    PinnedImage,
    Settings,
    matching,
)
from infra.settings.volumes import ReferenceSettings

_RUN: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?-[0-9a-f]{8}")
_ARTIFACT: Final = re.compile(r"[a-z0-9.-]+(:\d+)?/[a-z0-9][a-z0-9._/-]*@sha256:[0-9a-f]{64}")
_URL: Final = re.compile(r"(s3|gs|az|https?)://[^\s?#@]+")


def _run_name(text: str) -> str:
    if not _RUN.fullmatch(text):
        raise ValueError(
            "must be the full name of a run, <job>-<8 hex digits>, as in the `runs` output"
        )
    return text


def _export_url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise ValueError(
            "must be the URL of an export, without credentials, such as "
            "s3://bucket/digits-1a2b3c4d/export (or gs://, az://, http:// and https://)"
        )
    return text.rstrip("/")


RunName = Annotated[str, AfterValidator(_run_name)]
"""Full name of a run, including its eight hex digits."""

ExportUrl = Annotated[str, AfterValidator(_export_url)]
"""URL of an export in an object store or on a web server."""

_ClaimPath = Annotated[
    str,
    matching(
        re.compile(r"([^\s/]+(/[^\s/]+)*)?"),
        4096,
        "a relative path without spaces, such as models/digits",
    ),
]
_HubModel = Annotated[
    str,
    matching(
        re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+"),
        200,
        "organization/name, as on the Hugging Face Hub",
    ),
]
_Commit = Annotated[
    str,
    matching(
        re.compile(r"[0-9a-f]{40}"),
        40,
        "a commit hash of 40 lower-case hexadecimal digits; branches and tags are not accepted",
    ),
]


class CacheSettings(Settings):
    """A claim in which init containers keep copies of downloaded files, for all pods to share."""

    claim: DnsLabel = Field(
        description="Claim for the copies. With a shared file system, all pods share the copies; "
        "with a local directory on each node, only pods on the same node share them."
    )
    size: MemoryQuantity = Field(
        description="Maximum total size of the copies. The least recently used copies are deleted."
    )


class FetchSettings(Settings):
    """Download of the model that `url` or `source` specifies."""

    size: MemoryQuantity = Field(
        default="2Gi",
        description="Size limit for the downloaded model on the node's disk. A pod that needs "
        "more is evicted.",
    )
    env: dict[EnvironmentName, str] = Field(
        default={},
        description="Environment variables for the object store or the registry, such as "
        "AWS_REGION, AWS_ENDPOINT_URL and SSL_CERT_FILE.",
    )
    env_from: dict[EnvironmentName, ReferenceSettings] = Field(
        default={},
        description="Environment variables from Secrets and ConfigMaps, such as "
        "AWS_SECRET_ACCESS_KEY, OCI_USERNAME and OCI_PASSWORD.",
    )
    cache: CacheSettings | None = Field(
        default=None,
        description="Cache that pods share (`torch` runtime). If null, each pod downloads "
        "the export.",
    )


class ClaimSourceSettings(Settings):
    """A directory in one of the stack's claims."""

    name: DnsLabel = Field(description="Key of the claim.")
    path: _ClaimPath = Field(
        default="",
        description="Directory in the claim. Empty means the root of the claim.",
    )

    @model_validator(mode="after")
    def _path_is_inside_the_claim(self) -> Self:
        if ".." in self.path.split("/"):
            raise ValueError(f"sets path to {self.path}, which is outside the claim: remove '..'")
        return self


class HubSourceSettings(Settings):
    """A model on the Hugging Face Hub, which the server downloads when it starts."""

    model: _HubModel = Field(
        description="Name of the model, as organization/name.",
    )
    revision: _Commit = Field(
        description="Full commit hash, which ensures that all pods serve the same weights.",
    )
    cache: DnsLabel | None = Field(
        default=None,
        description="Claim for downloaded models, which pods share. If null, each pod downloads to "
        "its own emptyDir, limited by fetch.size.",
    )


class SourceSettings(Settings):
    """A model source other than a run or the URL of an export."""

    claim: ClaimSourceSettings | None = Field(default=None, description="A directory in a claim.")
    hub: HubSourceSettings | None = Field(
        default=None, description="A model on the Hugging Face Hub (`vllm` and `custom` runtimes)."
    )
    artifact: PinnedImage | None = Field(
        default=None,
        description="An OCI artifact or image by digest, mounted as an image volume. Image volumes "
        "are enabled by default in Kubernetes 1.35 and later.",
    )
    download: bool = Field(
        default=False,
        description="Download the artifact to the node in an init container (`torch` runtime), for "
        "clusters and container runtimes that cannot mount artifacts.",
    )
    image: bool = Field(
        default=False, description="The model is part of the image (`custom` runtime)."
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        keys = [name for name in ("claim", "hub", "artifact", "image") if getattr(self, name)]
        if len(keys) != 1:
            sources = " and ".join(keys) or "none of them"
            raise ValueError(
                f"must set exactly one of claim, hub, artifact and image, but sets {sources}"
            )
        if self.download and self.artifact is None:
            raise ValueError("sets download, but has no artifact to download: remove download")
        if self.download and not _ARTIFACT.fullmatch(self.artifact or ""):
            raise ValueError(
                f"sets download with artifact {self.artifact}: use the form registry.example.com/"
                "repository@sha256:…, without a tag"
            )
        return self

    @property
    def claim_name(self) -> str | None:
        """Claim with the model or with downloaded models. None if there is no such claim."""
        if self.hub is not None:
            return self.hub.cache
        return self.claim.name if self.claim is not None else None
