"""Control plane of a cluster: etcd, the API server, controllers, the scheduler and kwok.

The binary runtime of kwokctl starts these components as plain processes and keeps its files in
HOME.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from simulation.configuration import Settings, kwokctl_configuration, write_kwok_start
from simulation.supervisor import RESTART_DELAY

NAME = "cluster"


class ControlPlane:
    """Control plane of one cluster, either new or with existing data."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.inner_kubeconfig = settings.home / "kubeconfig"
        self._kwokctl_pid: int | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of kwokctl, which writes to HOME and to the kubeconfig."""
        return {
            **os.environ,
            "HOME": str(self.settings.home),
            "KUBECONFIG": str(self.inner_kubeconfig),
            "PATH": f"{self.settings.binaries}:{os.environ['PATH']}",
        }

    @property
    def exists(self) -> bool:
        """True if an earlier start created the control plane."""
        return self._complete.exists()

    @property
    def _complete(self) -> Path:
        return self.settings.home / "complete"

    def start(self) -> None:
        """Start the control plane.

        Raises:
            CalledProcessError: If kwokctl fails; its log contains the reason.
        """
        home = self.settings.home
        if self.exists:
            # A new PID namespace reuses process IDs, so recorded IDs could match other processes.
            for file in self._pid_files():
                file.unlink()
            self._link_binaries()
            self._kwokctl("start", "cluster", "--wait", "180s")
            return
        # An interrupted first start may have created only some certificates, so start over.
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        self._write_kwok_start()
        file = home / "kwokctl.json"
        file.write_text(json.dumps(kwokctl_configuration(self.settings), indent=2))
        arguments = ("--config", str(file), "create", "cluster", "--wait", "180s")
        self._kwokctl(*arguments, "--kubeconfig", str(self.inner_kubeconfig))
        self._complete.touch()

    def _link_binaries(self) -> None:
        self._write_kwok_start()
        # kwokctl starts components through symbolic links, which may point to the binaries of an
        # earlier start.
        for link in (self.settings.pki.parent / "bin").iterdir():
            binary = self.settings.binaries / link.name
            target = self.settings.kwok if link.name == "kwok-controller" else binary
            if link.readlink() != target:
                link.unlink()
                link.symlink_to(target)

    def _write_kwok_start(self) -> None:
        if not self.settings.address:
            write_kwok_start(self.settings)

    def _kwokctl(self, *arguments: str) -> None:
        with (self.settings.logs / "kwokctl.log").open("ab") as log:
            subprocess.run(
                [str(self.settings.binaries / "kwokctl"), "--name", NAME, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

    def on_exit(self, pid: int) -> None:
        """Restart components that are down. Call this method for every exited process.

        This method does not wait for kwokctl. Only one kwokctl process runs at a time, because two
        could start the same component. The second process of that component would exit, because
        the port is already in use, but kwokctl might have recorded its process ID.
        """
        is_kwokctl = pid == self._kwokctl_pid
        if is_kwokctl:
            self._kwokctl_pid = None
        elif pid not in self.component_pids():
            return
        if self._kwokctl_pid is None and self._is_down():
            if is_kwokctl:
                time.sleep(RESTART_DELAY)
            self._kwokctl_pid = self._restart()

    def _is_down(self) -> bool:
        return not all(Path(f"/proc/{pid}").exists() for pid in self.component_pids())

    def _restart(self) -> int:
        with (self.settings.logs / "kwokctl.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.settings.binaries / "kwokctl"), "--name", NAME, "start", "cluster"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process.returncode = 0  # the supervisor reaps all processes and collects the exit status
        return process.pid

    def component_pids(self) -> dict[int, str]:
        """Map process IDs, as recorded by kwokctl, to component names."""
        pids = {}
        for file in self._pid_files():
            text = file.read_text().strip()
            if text.isdigit():
                pids[int(text)] = file.stem
        return pids

    def _pid_files(self) -> list[Path]:
        return list((self.settings.pki.parent / "pids").glob("*.pid"))

    def write_kubeconfig(self, path: Path, server: str) -> None:
        """Write a kubeconfig as JSON, with the cluster's context name and mode 0600."""

        def data(name: str) -> str:
            return base64.b64encode((self.settings.pki / name).read_bytes()).decode()

        name = self.settings.context
        user = {"client-certificate-data": data("admin.crt"), "client-key-data": data("admin.key")}
        cluster = {"server": server, "certificate-authority-data": data("ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)  # a leftover file would keep its mode
        part.touch(mode=0o600)
        part.write_text(json.dumps(config, indent=2))
        part.replace(path)
