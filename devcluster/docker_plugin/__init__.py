"""Stand-in for Pulumi's Docker plugin, for hosts where the official one is not available.

It provides the `docker:index/image:Image` resource with the official inputs and outputs, and uses
the Docker CLI. The official plugin is preferred if it is installed or can be downloaded.
"""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from devcluster.paths import CHECKOUT

VERSION = "5.2.0"
"""Version of the official plugin that the SDK in requirements.txt requires."""

DOWNLOAD_SECONDS = 60

_DIRECTORY = f"resource-docker-v{VERSION}"
_FILE = "pulumi-resource-docker"
_MODULE = "devcluster.docker_plugin"


@dataclass(frozen=True)
class Plugin:
    """The plugin in use, and a note about its origin."""

    official: bool
    note: str


def install(pulumi_home: Path, python: Path, path: str | None = None) -> Plugin:
    """Install the official Docker plugin or, if it is not available, the stand-in.

    `pulumi_home` is the project's PULUMI_HOME, `python` an interpreter with the project's
    requirements installed, and `path` the PATH to search for `pulumi`. No download is attempted
    while the stand-in is installed, because changing the plugin would rebuild all images.
    """
    plugin = pulumi_home / "plugins" / _DIRECTORY / _FILE
    if plugin.exists() and not _is_stand_in(plugin):
        return Plugin(True, f"the official Docker plugin {VERSION}")
    if installed := _installed_by_user(pulumi_home):
        shutil.rmtree(plugin.parent, ignore_errors=True)
        plugin.parent.mkdir(parents=True)
        plugin.symlink_to(installed)
        return Plugin(True, f"the official Docker plugin {VERSION} from {installed.parent}")
    if not plugin.exists() and _download(pulumi_home, path) and plugin.exists():
        return Plugin(True, f"the official Docker plugin {VERSION}, downloaded")
    _write_launcher(plugin, python)
    return Plugin(
        False,
        f"the project's stand-in, because the official Docker plugin {VERSION} "
        "is neither installed nor available for download",
    )


def _is_stand_in(file: Path) -> bool:
    with file.open("rb") as content:
        return _MODULE.encode() in content.read(1000)


def _installed_by_user(pulumi_home: Path) -> Path | None:
    home = Path(os.environ.get("PULUMI_HOME") or "~/.pulumi").expanduser().resolve()
    for candidate in (home, Path("~/.pulumi").expanduser().resolve()):
        file = candidate / "plugins" / _DIRECTORY / _FILE
        if candidate != pulumi_home.resolve() and os.access(file, os.X_OK):
            return None if _is_stand_in(file) else file
    return None


def _download(pulumi_home: Path, path: str | None) -> bool:
    pulumi = shutil.which("pulumi", path=path)
    if pulumi is None:
        return False
    settings = {"PULUMI_HOME": str(pulumi_home), "PULUMI_SKIP_UPDATE_CHECK": "1"}
    try:
        done = subprocess.run(
            [pulumi, "plugin", "install", "resource", "docker", VERSION, "--non-interactive"],
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _write_launcher(plugin: Path, python: Path) -> None:
    checkout, interpreter = shlex.quote(str(CHECKOUT)), shlex.quote(str(python))
    text = (
        "#!/bin/sh\n"
        f"# Stand-in for Pulumi's Docker plugin: {_MODULE} of the gpu-platform project.\n"
        f'PYTHONPATH={checkout}${{PYTHONPATH:+:$PYTHONPATH}} exec {interpreter} -m {_MODULE} "$@"\n'
    )
    if plugin.exists() and not plugin.is_symlink() and plugin.read_text() == text:
        return
    plugin.parent.mkdir(parents=True, exist_ok=True)
    temporary = plugin.with_suffix(".new")
    temporary.write_text(text)
    temporary.chmod(0o755)
    temporary.replace(plugin)
