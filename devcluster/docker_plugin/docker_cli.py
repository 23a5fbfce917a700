"""Wrapper around the Docker CLI: login, build and push."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from devcluster.docker_plugin.inputs import Image, ImageError, Registry

Show = Callable[[str], Awaitable[None]]
"""Callback for each line that Docker prints."""

TAIL_LINES = 25

_LAYER_PROGRESS = re.compile(r"#\d+ sha256:[0-9a-f]{64}$")
_DIGEST = re.compile(r"\bdigest: (sha256:[0-9a-f]{64})\b")


@dataclass(frozen=True)
class Docker:
    """A Docker executable with its environment, and the secrets to hide in its output."""

    executable: str
    environment: dict[str, str]
    secrets: tuple[str, ...] = ()
    show: Show | None = None

    async def build(self, image: Image) -> None:
        """Build an image. Raise ImageError with the last output lines if the build fails."""
        arguments, environment = build_arguments(image)
        await self._run(arguments, f"building {image.image_name} failed", environment)

    async def push(self, image: Image) -> str:
        """Push an image and return its digest in the registry, `sha256:…`."""
        name = image.image_name
        lines = await self._run(["push", name], f"pushing {name} failed")
        for line in reversed(lines):
            if match := _DIGEST.search(line):
                return match[1]
        raise ImageError(f"docker push {name} reported no digest:\n" + "\n".join(lines))

    async def image_id(self, image: Image) -> str:
        """Return the local ID of a built image, `sha256:…`."""
        arguments = ["image", "inspect", "--format", "{{.Id}}", image.image_name]
        return (await self._run(arguments, f"inspecting {image.image_name} failed"))[-1]

    async def login(self, registry: Registry) -> None:
        """Log in, and store the credentials in this object's Docker configuration directory."""
        arguments = ["login", "--username", registry.username, "--password-stdin"]
        if registry.server:
            arguments.append(registry.server)
        failure = f"logging in to {registry.server or 'Docker Hub'} as {registry.username} failed"
        await self._run(arguments, failure, stdin=registry.password)

    async def _run(
        self,
        arguments: list[str],
        failure: str,
        environment: dict[str, str] | None = None,
        stdin: str = "",
    ) -> list[str]:
        """Run Docker and return its output lines. Raise ImageError if it fails."""
        process = await asyncio.create_subprocess_exec(
            self.executable,
            *arguments,
            env=self.environment | (environment or {}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1024 * 1024,
            process_group=0,
        )
        try:
            lines = await self._read_lines(process, stdin)
        except BaseException:  # includes cancellation
            # Also kill CLI plugins, which would keep the pipe open and the build running.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        if process.returncode:
            raise ImageError("\n".join([f"{failure}:", *lines[-TAIL_LINES:]]))
        return lines

    async def _read_lines(self, process: asyncio.subprocess.Process, stdin: str) -> list[str]:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("docker was started without pipes")
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(stdin.encode())
            await process.stdin.drain()
        process.stdin.close()
        lines = []
        async for raw in process.stdout:
            line = self._without_secrets(raw.decode(errors="replace").rstrip())
            if line and not _LAYER_PROGRESS.match(line):
                lines.append(line)
                if self.show:
                    await self.show(line)
        await process.wait()
        return lines

    def _without_secrets(self, line: str) -> str:
        for secret in self.secrets:
            line = line.replace(secret, "[secret]") if secret else line
        return line


def build_arguments(image: Image) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of `docker build`.

    Secret build arguments are passed in the environment, which the process list does not show.
    """
    build = image.build
    use_buildkit = build.builder_version == "BuilderBuildKit"
    environment = {"DOCKER_BUILDKIT": "1" if use_buildkit else "0"}
    arguments = ["build", "--file", build.dockerfile, "--tag", image.image_name]
    for option, value in (
        ("--progress", "plain" if use_buildkit else ""),
        ("--platform", build.platform),
        ("--target", build.target),
        ("--network", build.network),
    ):
        arguments += [option, value] if value else []
    for name, value in build.args.items():
        if value in image.secrets:
            environment[name] = value
        arguments += ["--build-arg", name if value in image.secrets else f"{name}={value}"]
    for entry in build.add_hosts:
        arguments += ["--add-host", entry]
    for cached in build.cache_from.images if build.cache_from else ():
        arguments += ["--cache-from", cached]
    return [*arguments, build.context], environment


@asynccontextmanager
async def docker_for(
    image: Image, credentials: Registry | None, settings: dict[str, str], show: Show
) -> AsyncIterator[Docker]:
    """Yield a Docker CLI for an image, logged in if there are credentials.

    With credentials, the CLI uses a temporary copy of the user's configuration directory (see
    `copy_configuration`), so the login does not change the user's directory.
    """
    executable = find_docker(os.environ.get("PATH", ""))
    environment = dict(os.environ) | settings
    if credentials is None:
        yield Docker(executable, environment, image.secrets, show)
        return
    with tempfile.TemporaryDirectory(prefix="docker-config-") as directory:
        copy_configuration(Path(directory), credentials.server)
        secrets = (*image.secrets, credentials.password)
        docker = Docker(executable, environment | {"DOCKER_CONFIG": directory}, secrets, show)
        await docker.login(credentials)
        yield docker


def copy_configuration(to: Path, server: str) -> None:
    """Copy the user's Docker configuration, so that a login to `server` is stored only in the copy.

    The copy omits `credsStore` and the credential helper for the server, which would store the
    credentials elsewhere.
    """
    source = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser().absolute()
    try:
        settings = json.loads((source / "config.json").read_text())
    except (OSError, ValueError):
        settings = {}
    settings.pop("credsStore", None)
    settings.get("credHelpers", {}).pop(server, None)
    file = to / "config.json"
    file.touch(mode=0o600)
    file.write_text(json.dumps(settings))
    for name in ("cli-plugins", "contexts"):
        if (source / name).is_dir():
            (to / name).symlink_to(source / name)


@cache
def find_docker(path: str) -> str:
    """Return the first Docker CLI on a PATH that can build with BuildKit.

    Docker 23 and later require the buildx plugin, which some distributions omit. Raise ImageError
    if no suitable CLI exists.
    """
    tried = []
    for executable in _candidates(path):
        if _has_buildkit(executable):
            return executable
        tried.append(executable)
    if tried:
        raise ImageError(
            f"{' and '.join(tried)} cannot build with BuildKit: install the buildx plugin "
            "(Debian: docker-buildx, or docker.io from Debian 12)"
        )
    raise ImageError("docker is not on PATH: install it (Debian: apt-get install docker.io)")


def _candidates(path: str) -> Iterable[str]:
    for directory in path.split(os.pathsep):
        if directory and (program := shutil.which("docker", path=directory)):
            yield program


def _has_buildkit(executable: str) -> bool:
    version = _output([executable, "--version"])
    if version is None:
        return False
    number = re.search(r"version (\d+)", version)
    if number and int(number[1]) < 23:
        return True
    return _output([executable, "buildx", "version"]) is not None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
