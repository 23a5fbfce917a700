"""A notebook in a browser: JupyterLab as the rendered pod starts it, and Debian's Chromium."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from devcluster.paths import CHECKOUT
from infra.outputs import gpu_nodes_output
from kube.names import USER_ID
from tests.infra.examples import TRAINING_IMAGE
from tests.infra.jobs import NODES, job, objects
from tests.operators.container import Container, stop
from tests.tiers import unavailable
from tools.environments import environment

TOKEN = "c0ffee5ea5"
URL = "http://127.0.0.1:8888/anna"
PATIENCE = 90.0


def pod() -> dict[str, Any]:
    """The pod of a notebook behind a route with a prefix."""
    described = job("notebook", gpus_per_node=1)
    described["notebook"] = {**described["notebook"], "idle_minutes": 1}
    (task,) = objects(described)[-1]["spec"]["tasks"]
    found: dict[str, Any] = task["template"]["spec"]
    return found


def program(folder: Path) -> Path:
    """/app of the image: what its Dockerfile copies."""
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
    """The pod of a notebook, which may start several times with the same claims."""

    container: Container
    folder: Path

    @property
    def home(self) -> Path:
        return self.folder / "notebook-home" / "job"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        # The cookie secret is in an emptyDir, so a new pod demands the token again.
        for name in ("shm", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            _directory(self.folder / name)
        process = self.container.start(self.folder / "log")
        try:
            path = self.container.spec["containers"][0]["readinessProbe"]["httpGet"]["path"]
            wait(lambda: _answers(f"http://127.0.0.1:8888{path}"), "the readiness probe", self)
            yield process
        finally:
            stop(process)


def _directory(path: Path) -> None:
    path.mkdir()
    shutil.chown(path, USER_ID, USER_ID)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def wait(condition: Callable[[], Any], what: str, server: Server | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        log = server.log[-2000:] if server else ""
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}\n{log}"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        unavailable("the container of the pod needs root and setpriv")
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
    """A job and a platform in the home directory, as arguments of `python -m gpu_platform run`."""
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


@dataclass
class Browser:
    """JupyterLab in Chromium."""

    driver: webdriver.Chrome

    def find(self, selector: str) -> WebElement:
        return WebDriverWait(self.driver, PATIENCE).until(
            lambda driver: driver.find_element(By.CSS_SELECTOR, selector)
        )

    def has(self, text: str, selector: str) -> bool:
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return any(text in (each.get_attribute("textContent") or "") for each in found)

    def click(self, selector: str) -> None:
        def clicked(driver: webdriver.Chrome) -> bool:
            driver.find_element(By.CSS_SELECTOR, selector).click()
            return True

        WebDriverWait(self.driver, PATIENCE, ignored_exceptions=[Exception]).until(clicked)

    def log_in(self, path: str = "/lab") -> None:
        self.driver.get(f"{URL}{path}")
        self.find("#password_input").send_keys(TOKEN, Keys.ENTER)
        self.find("#jp-main-dock-panel")

    def type(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def run(self, code: str) -> None:
        """Run a new last cell, which needs no closing bracket: the editor adds it."""
        self.click(".jp-Notebook .jp-Cell:last-of-type .cm-content")
        self.type(code)
        chain = ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(Keys.ENTER)
        chain.key_up(Keys.SHIFT).perform()

    def save(self) -> None:
        chain = ActionChains(self.driver).key_down(Keys.CONTROL).send_keys("s")
        chain.key_up(Keys.CONTROL).perform()


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser without cookies."""
    program, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or chromedriver is None:
        unavailable("Debian's packages chromium and chromium-driver are missing")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(option)
    options.add_argument(f"--user-data-dir={profile}")
    driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def test_a_notebook_is_used_suspended_and_resumed(server: Server, tmp_path: Path) -> None:
    with server.running() as process, chromium(tmp_path / "first") as browser:
        assert httpx.get(f"{URL}/api/contents").status_code == 403
        assert httpx.get(f"{URL}/api/contents?token=wrong").status_code == 403
        browser.log_in()
        browser.click('.jp-LauncherCard[data-category="Notebook"]')
        browser.run("import torch; print(torch.arange(3) + 1)")
        wait(
            lambda: browser.has("tensor([1, 2, 3])", ".jp-OutputArea-output"), "the tensor", server
        )
        browser.run("import gpu_platform.facade as f; print(f.TrainingJob.__name__)")
        wait(lambda: browser.has("TrainingJob", ".jp-OutputArea-output"), "the components", server)
        browser.run(f"!python3 -m gpu_platform run {submitted(server)} --dry-run")
        wait(lambda: browser.has("kind: Job", ".jp-OutputArea-output"), "the manifest", server)
        browser.save()
        browser.click(".jp-Dialog .jp-mod-accept")
        file = server.home / "Untitled.ipynb"
        wait(lambda: file.exists() and "tensor([1, 2, 3])" in file.read_text(), "the file", server)
        warning = "idle and will be suspended in 1 min"
        wait(lambda: browser.has(warning, ".Toastify"), "the warning", server)
        # Longer than the limit: a busy kernel is activity.
        browser.run("import time; time.sleep(70); print('wo' + 'ken')")
        wait(lambda: not browser.has(warning, ".Toastify"), "the end of the warning", server)
        wait(lambda: browser.has("woken", ".jp-OutputArea-output"), "the end of the cell", server)
        assert process.poll() is None
        wait(lambda: browser.has(warning, ".Toastify"), "the second warning", server)
        assert not browser.has("official Jupyter news", ".Toastify")
        wait(lambda: process.poll() is not None, "the suspension", server)
        # Volcano suspends the job of a pod that succeeds: tests/cluster/…/test_notebooks.py.
        assert process.returncode == 0
    with server.running(), chromium(tmp_path / "second") as browser:
        browser.log_in("/lab/tree/Untitled.ipynb")
        wait(lambda: browser.has("tensor([1, 2, 3])", ".jp-OutputArea-output"), "the file", server)
    assert TOKEN not in server.log
    kept = subprocess.run(
        ["grep", "-rl", TOKEN, str(server.folder / "notebook-home")], capture_output=True, text=True
    )
    assert kept.stdout == "", "the token is on the claim"
