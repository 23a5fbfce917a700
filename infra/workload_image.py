"""Images of workloads, built and pushed, or referenced by digest."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pulumi

from infra.component import Component
from infra.configuration import RegistryLogin
from infra.settings.images import (
    PROJECT_ROOT,
    BuildSettings,
    ImageSettings,
    ImagesSettings,
    identity,
    is_inside,
)


@dataclass(frozen=True, kw_only=True)
class WorkloadImageArgs:
    """An image, and the repository (host and path) to which it is pushed if it is built.

    Paths in the settings are relative to `root`, which is the program's directory by default.
    """

    key: str
    image: ImageSettings
    repository: str = ""
    login: RegistryLogin | None = None
    root: Path = Path()

    @classmethod
    def of(cls, images: ImagesSettings, key: str, login: RegistryLogin | None) -> Self:
        """Build the arguments for one of the configured images."""
        repository = "/".join(part for part in (images.registry, images.repository) if part)
        image = images.workloads[key]
        return cls(key=key, image=image, repository=repository, login=login, root=PROJECT_ROOT)


class WorkloadImage(Component):
    """An image of a workload.

    `reference` contains the digest, so a build must finish before `reference` is known. `identity`
    is always known, and the hash in a run's name includes it. The identity of an existing image is
    its reference. The identity of a built image is a hash of the build settings and of the sources
    outside this project's directories, so an upgrade of this project does not start new runs.
    """

    reference: pulumi.Output[str]
    identity: str

    def __init__(
        self, name: str, args: WorkloadImageArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("WorkloadImage", name, opts)
        if args.image.build is not None:
            for source in (args.image.build.dockerfile, *args.image.build.sources):
                if not is_inside(source, args.root):
                    raise pulumi.RunError(
                        f"WorkloadImage {args.key!r} is built from {source!r}, which does not "
                        f"exist in {args.root.absolute()}: use a path in this directory."
                    )
            sources = identity(args.image.build, args.root, project=PROJECT_ROOT)
            self.identity = f"sources:{sources}"
            self.reference = self._build(name, args, args.image.build)
        else:
            pinned = str(args.image.reference)
            self.identity = pinned
            self.reference = pulumi.Output.from_input(pinned)
        self.register_outputs({"reference": self.reference})

    def _build(
        self, name: str, args: WorkloadImageArgs, build: BuildSettings
    ) -> pulumi.Output[str]:
        try:
            # Imported here, because only programs that build images need the provider.
            import pulumi_docker as docker
        except ModuleNotFoundError:
            raise pulumi.RunError(
                "WorkloadImage builds images with pulumi-docker, which is not installed: install "
                "gpu-platform[components,images]."
            ) from None
        tag = identity(build, args.root)[:16]
        image = docker.Image(
            f"{name}-build",
            image_name=f"{args.repository}/{args.key}:{tag}",
            build=docker.DockerBuildArgs(
                context=_relative(args.root),
                dockerfile=_relative(args.root / build.dockerfile),
                args={"BASE_IMAGE": build.base_image, **build.args},
                platform=build.platform,
                target=build.target,
            ),
            registry=docker.RegistryArgs(
                server=args.login.server, username=args.login.username, password=args.login.password
            )
            if args.login
            else None,
            opts=self.options(),
        )
        return image.repo_digest


def _relative(path: Path) -> str:
    """Return a relative path, so that the state does not contain the checkout's location."""
    return Path(os.path.relpath(path)).as_posix()
