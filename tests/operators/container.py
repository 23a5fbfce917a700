"""The container of a rendered pod as a process: its command, variables, user and mounts.

The process sees the host's files, except /home and /tmp, and the pod's volumes at their mount
paths.
"""

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube.names import USER_ID


@dataclass(frozen=True)
class Container:
    """The only container of a pod, with a host directory for each volume.

    `image` maps paths to directories of the image, and `variables` are set by the image. The
    process may read all files, such as the tests' interpreter in another user's home.
    """

    spec: dict[str, Any]
    volumes: Mapping[str, Path]
    image: Mapping[str, Path]
    variables: Mapping[str, str]
    root: Path

    def start(self, log: Path) -> "subprocess.Popen[bytes]":
        """Start the process, whose exit status becomes the container's exit status."""
        (main,) = self.spec["containers"]
        environment = {
            variable["name"]: variable.get("value", "node-0") for variable in main["env"]
        }
        rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        user = [f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "--no-new-privs"]
        # A shell on the host would set additional variables.
        command = ["setpriv", *user, *rights, "env", "-i"]
        command += [f"{name}={value}" for name, value in {**self.variables, **environment}.items()]
        script = "\n".join(["set -e", *self._mounts(main), f"cd {self.root}"])
        script += f"\nexec chroot . {shlex.join([*command, *main['command']])}"
        with log.open("ab") as output:
            return subprocess.Popen(
                ["unshare", "--mount", "--propagation=private", "bash", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def _mounts(self, main: Mapping[str, Any]) -> list[str]:
        self.root.mkdir(parents=True, exist_ok=True)
        lines = [f"mount -t tmpfs root {self.root}"]
        for path in sorted(Path("/").iterdir()):
            if path.is_symlink():
                lines.append(f"ln -s {path.readlink()} {self.root}{path}")
            elif path.is_dir() and path.name not in ("home", "tmp"):
                lines.append(f"mkdir {self.root}{path}; mount --rbind {path} {self.root}{path}")
        for at, source in self.image.items():
            lines.append(f"mkdir -p {self.root}{at}; mount --bind {source} {self.root}{at}")
        for mount in main["volumeMounts"]:
            source, target = self.volumes[mount["name"]], f"{self.root}{mount['mountPath']}"
            lines.append(f"mkdir -p {target}; mount --bind {source} {target}")
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {target}")
        return [*lines, f"mount -o remount,ro {self.root}"]


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Kill the remaining processes of a container."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
