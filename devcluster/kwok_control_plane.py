"""The control plane: etcd, API server, controller manager, scheduler and kwok, run by kwokctl.

kwokctl's binary runtime starts them as plain processes and keeps its files below HOME.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from devcluster import kwok_start
from devcluster.kwok_configuration import kwok_binary, kwokctl_configuration
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, Kind
from devcluster.supervisor import RESTART_DELAY

NAME = "cluster"


class ControlPlane:
    """kwokctl's control plane of one cluster; started anew or from what an earlier start kept."""

    def __init__(self, spec: ClusterSpec, layout: Layout, binaries: Path, api_port: int) -> None:
        self.spec = spec
        self.layout = layout
        self.binaries = binaries
        self.api_port = api_port
        self.inner_kubeconfig = layout.control_plane / "kubeconfig"
        self._starting: int | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """kwokctl writes below HOME and into the kubeconfig: both are the cluster's own."""
        return {
            **os.environ,
            "HOME": str(self.layout.control_plane),
            "KUBECONFIG": str(self.inner_kubeconfig),
            "PATH": f"{self.binaries}:{os.environ['PATH']}",
        }

    def start(self) -> None:
        """Brings the control plane up. Raises CalledProcessError; kwokctl's log has the reason."""
        home = self.layout.control_plane
        complete = home / "complete"
        if complete.exists():
            # Process ids begin anew with the namespace, and an old one would pass for a new one's.
            for file in self._pid_files():
                file.unlink()
            self._link_binaries()
            self._kwokctl("start", "cluster", "--wait", "180s")
            return
        # A start that was cut off may have left half of the certificates: begin again.
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        self._write_kwok_start()
        file = home / "kwokctl.json"
        settings = kwokctl_configuration(self.spec, self.layout, self.binaries, self.api_port)
        file.write_text(json.dumps(settings, indent=2))
        arguments = ("--config", str(file), "create", "cluster", "--wait", "180s")
        self._kwokctl(*arguments, "--kubeconfig", str(self.inner_kubeconfig))
        complete.touch()

    def _link_binaries(self) -> None:
        self._write_kwok_start()
        # kwokctl starts what its links name, which is the toolchain of the cluster's first start.
        kwok = kwok_binary(self.spec, self.layout, self.binaries)
        for link in (self.layout.pki.parent / "bin").iterdir():
            target = kwok if link.name == "kwok-controller" else self.binaries / link.name
            if link.readlink() != target:
                link.unlink()
                link.symlink_to(target)

    def _write_kwok_start(self) -> None:
        if self.spec.kind is Kind.SIMULATED:
            kwok_start.write(self.layout, self.binaries)

    def _kwokctl(self, *arguments: str) -> None:
        with (self.layout.logs / "kwokctl.log").open("ab") as log:
            subprocess.run(
                [str(self.binaries / "kwokctl"), "--name", NAME, *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

    def ended(self, pid: int) -> None:
        """To be told of every process that has ended; starts again what is down, without waiting.

        One kwokctl at a time: of two, each would start what is down, and note the process ids of
        components that end since the other's have their ports.
        """
        again = pid == self._starting
        if again:
            self._starting = None
        elif pid not in self.component_pids():
            return
        if self._starting is None and self._is_down():
            if again:
                time.sleep(RESTART_DELAY)
            self._starting = self._start_again()

    def _is_down(self) -> bool:
        return not all(Path(f"/proc/{pid}").exists() for pid in self.component_pids())

    def _start_again(self) -> int:
        with (self.layout.logs / "kwokctl.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self.binaries / "kwokctl"), "--name", NAME, "start", "cluster"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        process.returncode = 0  # who waits for all processes collects its exit status
        return process.pid

    def component_pids(self) -> dict[int, str]:
        """Process ids that kwokctl noted down, with the component's name."""
        found = {}
        for file in self._pid_files():
            text = file.read_text().strip()
            if text.isdigit():
                found[int(text)] = file.stem
        return found

    def _pid_files(self) -> list[Path]:
        return list((self.layout.pki.parent / "pids").glob("*.pid"))

    def write_kubeconfig(self, path: Path, server: str) -> None:
        """Writes a kubeconfig (JSON is YAML) with the cluster's own context name, mode 0600."""

        def data(name: str) -> str:
            return base64.b64encode((self.layout.pki / name).read_bytes()).decode()

        name = self.spec.context
        user = {
            "client-certificate-data": data("admin.crt"),
            "client-key-data": data("admin.key"),
        }
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
        part.unlink(missing_ok=True)  # one of an earlier start would keep its mode
        part.touch(mode=0o600)
        part.write_text(json.dumps(config, indent=2))
        part.replace(path)
