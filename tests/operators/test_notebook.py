"""A notebook in a browser: JupyterLab as the rendered pod starts it, and Debian's Chromium."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from devcluster.paths import CHECKOUT
from infra.outputs import gpu_nodes_output
from kube.names import USER_ID
from tests.infra.examples import TRAINING_IMAGE
from tests.infra.jobs import NODES, job, objects
from tests.operators.browser import answers, chromium, wait
from tests.platforms import unavailable
from tools.environments import environment

TOKEN = "c0ffee5ea5"
URL = "http://127.0.0.1:8888/anna"


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


def pod() -> dict[str, Any]:
    """Return the pod of a notebook behind a route with a path prefix."""
    described = job("notebook", gpus_per_node=1)
    described["notebook"] = {**described["notebook"], "idle_minutes": 1}
    (task,) = objects(described)[-1]["spec"]["tasks"]
    found: dict[str, Any] = task["template"]["spec"]
    return found


def program(folder: Path) -> Path:
    """Create the image's /app, with the files that its Dockerfile copies."""
    copied = re.findall(
        r"^COPY (?!--|requirements)(.+) (\S+)$",
        (CHECKOUT / "notebooks/Dockerfile").read_text(),
        re.MULTILINE,
    )
    for sources, target in copied:
        for source in sources.split():
            if (CHECKOUT / source).is_dir():
                shutil.copytree(CHECKOUT / source, folder / target)
            else:
                (folder / target).mkdir(parents=True, exist_ok=True)
                shutil.copy(CHECKOUT / source, folder / target)
    assert copied
    return folder


@dataclass
class Server:
    """The pod of a notebook, which can be started several times with the same claims."""

    container: Container
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "checkpoints" / "job"

    def log(self) -> str:
        """Return the log."""
        return (self.folder / "log").read_text()

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        # The cookie secret is in an emptyDir, so a new pod requires the token again.
        for name in ("shm", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            _directory(self.folder / name)
        process = self.container.start(self.folder / "log")
        try:
            path = self.container.spec["containers"][0]["readinessProbe"]["httpGet"]["path"]
            wait(lambda: answers(f"http://127.0.0.1:8888{path}"), "the readiness probe", self.log)
            yield process
        finally:
            stop(process)


def _directory(path: Path) -> None:
    path.mkdir()
    shutil.chown(path, USER_ID, USER_ID)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        unavailable("starting the pod's container requires root and setpriv")
    folder = tmp_path_factory.mktemp("notebook")
    spec = pod()
    volumes = {volume["name"]: folder / volume["name"] for volume in spec["volumes"]}
    for path in volumes.values():
        _directory(path)
    (volumes["notebook-token"] / "token").write_text(f"{TOKEN}\n")
    app = folder / "app"
    app.mkdir()
    python = environment("notebook", inherits=True)
    return Server(
        Container(
            spec=spec,
            volumes=volumes,
            image={"/app": program(app)},
            variables={"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONPATH": "/app"},
            root=folder / "root",
        ),
        folder,
    )


def submitted(server: Server) -> str:
    """Write a job and a platform description; return arguments for `python -m gpu_platform run`."""
    training = {**job("volcano", nodes=1), "priority_class": None}
    (server.home / "job.yaml").write_text(json.dumps({"digits": training}))
    outputs = {
        "namespace": "ml",
        "queues": ["research"],
        "claims": {"checkpoints": "checkpoints", "datasets": "datasets"},
        "gpuNodes": gpu_nodes_output(NODES),
        "images": {"training": TRAINING_IMAGE},
    }
    identities = {"training": TRAINING_IMAGE}
    platform = {"stack": "team", "outputs": outputs, "identities": identities}
    platform |= {"labels": {}, "annotations": {}}
    (server.home / "platform.json").write_text(json.dumps(platform))
    return "job.yaml --namespace ml --platform platform.json"


def test_a_notebook_is_used_suspended_and_resumed(server: Server, tmp_path: Path) -> None:
    log = server.log
    with server.running() as process, chromium(tmp_path / "first", URL, TOKEN) as browser:
        assert httpx.get(f"{URL}/api/contents", timeout=60).status_code == 403
        assert httpx.get(f"{URL}/api/contents?token=wrong", timeout=60).status_code == 403
        browser.log_in()
        browser.click('.jp-LauncherCard[data-category="Notebook"]')
        browser.run("import torch; print(torch.arange(3) + 1)")
        wait(
            lambda: browser.has("tensor([1, 2, 3])", ".jp-OutputArea-output"), "the tensor", server
        )
        browser.run("import gpu_platform.facade as f; print(f.TrainingJob.__name__)")
        wait(
            lambda: browser.has("TrainingJob", ".jp-OutputArea-output"),
            "the components",
            server.log,
        )
        browser.run(f"!python3 -m gpu_platform run {submitted(server)} --dry-run")
        wait(lambda: browser.has("kind: Job", ".jp-OutputArea-output"), "the manifest", log)
        browser.save()
        browser.click(".jp-Dialog .jp-mod-accept")
        file = server.home / "Untitled.ipynb"
        wait(
            lambda: file.exists() and "tensor([1, 2, 3])" in file.read_text(),
            "the file",
            server.log,
        )
        warning = "idle and will be suspended in 1 min"
        wait(lambda: browser.has(warning, ".Toastify"), "the warning", log)
        # The cell runs longer than the idle limit, because a busy kernel counts as activity.
        browser.run("import time; time.sleep(70); print('wo' + 'ken')")
        wait(lambda: not browser.has(warning, ".Toastify"), "the end of the warning", log)
        wait(
            lambda: browser.has("woken", ".jp-OutputArea-output"),
            "the end of the cell",
            server.log,
        )
        assert process.poll() is None
        wait(lambda: browser.has(warning, ".Toastify"), "the second warning", log)
        assert not browser.has("official Jupyter news", ".Toastify")
        wait(lambda: process.poll() is not None, "the suspension", log)
        # Volcano suspends the job of a pod that succeeds: tests/cluster/…/test_notebooks.py.
        assert process.returncode == 0
    with server.running(), chromium(tmp_path / "second", URL, TOKEN) as browser:
        browser.log_in("/lab/tree/Untitled.ipynb")
        wait(
            lambda: browser.has("tensor([1, 2, 3])", ".jp-OutputArea-output"),
            "the file",
            server.log,
        )
    assert TOKEN not in server.log()
    kept = subprocess.run(
        ["grep", "-rl", TOKEN, str(server.folder / "checkpoints")], capture_output=True, text=True
    )
    assert kept.stdout == "", "the token is on the claim"
