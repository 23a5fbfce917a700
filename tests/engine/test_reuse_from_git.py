"""The components from a Git repository, as docs/reuse.md installs them."""

import os
import re
import shutil
import ssl
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
import yaml

from devcluster.paths import CHECKOUT
from devcluster.toolchain import Toolchain, files
from gpu_platform.plugin.host import VERSION
from tests import packaged
from tests.cluster.platform import copy_checkout
from tests.engine.git_server import git_server
from tests.engine.gitops.test_steps import git
from tests.engine.programs import Program, language_hosts
from tests.engine.test_reuse import PAGE, documented_program, platform

DOCUMENTED = "https://github.com/OWNER/REPOSITORY"
REPOSITORY = "team/platform"
HOST = "https://git.example.com"


@dataclass(frozen=True)
class Remote:
    """A Git server that hosts a repository with a tagged release."""

    url: str
    variables: dict[str, str]
    """Variables that redirect `HOST` to the server and pin packages that no requirement names."""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("remote")
    work = copy_checkout(folder / "work")
    (work / ".venv").unlink()
    git(work, "init", "--quiet", "--initial-branch=main")
    git(work, "add", "--all")
    git(work, "commit", "--quiet", "--message=Release")
    git(work, "tag", f"v{VERSION}")
    git(folder, "clone", "--quiet", "--bare", str(work), f"served/{REPOSITORY}.git")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST.removeprefix("https://")).configure_cert(context)
    roots = folder / "roots.pem"
    known = ssl.get_default_verify_paths().cafile
    roots.write_bytes((Path(known).read_bytes() if known else b"") + authority.cert_pem.bytes())
    with git_server(folder / "served", context) as url:
        variables = {
            "SSL_CERT_FILE": str(roots),
            # Pulumi reads the first variable, and pip the second.
            "HTTPS_PROXY": url,
            "https_proxy": os.environ.get("https_proxy", ""),
            "PIP_CONSTRAINT": str(constraints(folder)),
        }
        yield Remote(f"{url}/{REPOSITORY}.git", variables)


def constraints(folder: Path) -> Path:
    """Write pinned versions of the packages that Pulumi and pip install without a requirement."""
    pinned = (CHECKOUT / "requirements" / "tensorflow-image.txt").read_text()
    stack = (CHECKOUT / "requirements.txt").read_text()
    installers = re.findall(r"^(?:packaging|pip|setuptools|wheel)==\S+", pinned, re.MULTILINE)
    file = folder / "constraints.txt"
    file.write_text("\n".join([*installers, *re.findall(r"^\S+==\S+", stack, re.MULTILINE)]))
    return file


@pytest.mark.slow
def test_python_program_can_use_the_package_from_git(
    remote: Remote, tools: Toolchain, tmp_path: Path
) -> None:
    (requirement,) = re.findall(r'pip install "(.*\[components\] @ .*)"$', PAGE, re.MULTILINE)
    folder = tmp_path / "team"
    shutil.copytree(CHECKOUT / "examples" / "team-stack", folder)
    venv.create(folder / ".venv", with_pip=True)
    pinned = remote.variables["PIP_CONSTRAINT"]
    packaged.uv(
        *("pip", "install", "--python", str(folder / ".venv" / "bin" / "python")),
        *("--constraint", pinned, "--build-constraint", pinned),
        requirement.replace(DOCUMENTED, remote.url),
    )
    team = Program(folder, tools, tmp_path / "backend")
    platform(tmp_path / "platform", team)
    team.create()
    settings = {
        "platform": "organization/gpu-platform/prod",
        "queue": "research",
        "kubernetes:renderYamlToDirectory": "rendered",
    }
    plain = [word for each in settings.items() for word in ("--plaintext", "=".join(each))]
    assert team.run("config", "set-all", "--stack", team.stack, *plain).status == 0
    outcome = team.up()
    assert outcome.status == 0, outcome.text
    assert ("Job", team.outputs()["run"]["name"]) in team.manifests()


@pytest.mark.slow
def test_yaml_program_can_use_the_plugin_from_git(
    remote: Remote, tools: Toolchain, tmp_path: Path
) -> None:
    block = documented_program("yaml").replace(DOCUMENTED, f"{HOST}/{REPOSITORY}")
    document = yaml.safe_load(block)
    document["config"] = {"kubernetes:renderYamlToDirectory": "rendered"}
    # Pulumi installs the plugin there, and does not download providers that already exist there.
    plugins = tmp_path / "home" / "plugins"
    for provider in (tools.pulumi_home / "plugins").glob("resource-kubernetes-v*/"):
        files.link_missing_files(plugins / provider.name, provider)
    home = {"PULUMI_HOME": str(plugins.parent)}
    (tmp_path / "team").mkdir()
    variables = remote.variables | home
    team = Program(
        tmp_path / "team", tools, tmp_path / "backend", (language_hosts(),), variables=variables
    )
    platform(tmp_path / "platform", team)
    (team.folder / "Pulumi.yaml").write_text(yaml.safe_dump(document))
    team.create()
    installed = team.run("install")
    assert installed.status == 0, installed.text
    outcome = team.up()
    assert outcome.status == 0, outcome.text
    assert ("Job", team.outputs()["run"]) in team.manifests()
    (plugin,) = plugins.glob("resource-git.example.com_*/")
    assert plugin.name.endswith(f"-v{VERSION}")
    entry = document.pop("packages")["gpu-platform"]
    (team.folder / "Pulumi.yaml").write_text(yaml.safe_dump(document))
    added = team.run("package", "add", entry)
    assert added.status == 0, added.text
    assert set(yaml.safe_load((team.folder / "Pulumi.yaml").read_text())["packages"]) == {
        "gpu-platform"
    }
    assert team.preview("--expect-no-changes").status == 0
