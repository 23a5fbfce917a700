"""Where the images of the workloads come from."""

from typing import Self

from pydantic import Field, model_validator

from infra.settings.types import DnsLabel, PinnedImage, Settings, VersionedImage

PASSWORD_KEY = "registry_password"  # noqa: S105  the name of a configuration key


class BuildSettings(Settings):
    """Build the image from this repository."""

    dockerfile: str = Field(min_length=1, description="path of the Dockerfile in the repository")
    base_image: VersionedImage = Field(description="image that it starts from (BASE_IMAGE)")
    sources: list[str] = Field(
        min_length=1,
        description="files and folders that decide what is in the image: a change there makes a "
        "new image, and new runs of the jobs that use it",
    )
    platform: str = Field(
        default="linux/amd64", pattern=r"^linux/[a-z0-9/]+$", description="platform of the nodes"
    )
    args: dict[str, str] = Field(default={}, description="further build arguments; no secrets")
    target: str | None = Field(
        default=None,
        min_length=1,
        description="stage of the Dockerfile, such as `mpi`; else the last one",
    )


class ImageSettings(Settings):
    """One image: built here, or made elsewhere and pinned."""

    build: BuildSettings | None = Field(default=None, description="build and push it")
    reference: PinnedImage | None = Field(
        default=None, description="use this one and build nothing"
    )

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.build is None) == (self.reference is None):
            found = "both" if self.build else "neither"
            raise ValueError(
                f"needs either `build`, or `reference` pinned by digest, but has {found}"
            )
        return self


class ImagesSettings(Settings):
    """The registry and the images by name."""

    registry: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9.-]+(:\d+)?$",
        description="host of the registry that built images are pushed to",
    )
    repository: str = Field(
        default="gpu-platform",
        pattern=r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
        description="path in the registry; the image's name is added",
    )
    username: str | None = Field(
        default=None,
        min_length=1,
        description="user of the registry, for pushing and for the nodes' pulls; its password is "
        f"the secret {PASSWORD_KEY}",
    )
    workloads: dict[DnsLabel, ImageSettings] = Field(
        default={},
        description="images by name; jobs use `training` and services `inference` by default",
    )

    @model_validator(mode="after")
    def _registry_is_known(self) -> Self:
        if self.registry is None:
            if built := [name for name, image in self.workloads.items() if image.build]:
                raise ValueError(
                    f"lacks `registry`, the host to push to, but builds {', '.join(built)}"
                )
            if self.username is not None:
                raise ValueError("has a `username` but no `registry` that it belongs to")
        return self
