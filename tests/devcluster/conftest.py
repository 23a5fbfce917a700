"""An isolated machine: separate directories, and fake programs on PATH."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from devcluster.paths import Layout
from devcluster.spec import Kind

Install = Callable[[str, str], Path]
"""Function that puts a fake program, a shell script with the same name, on PATH."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache and state in a directory of this test."""
    folder = tmp_path / "platform"
    monkeypatch.setenv("GPU_PLATFORM_CACHE", str(folder))
    monkeypatch.delenv("GPU_PLATFORM_STATE", raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "GRPC_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return folder


@pytest.fixture
def no_clusters(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no user has an embedded cluster."""
    (tmp_path / "proc" / "1").mkdir(parents=True)  # psutil assumes at least one process
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


@pytest.fixture
def layout(home: Path) -> Layout:
    found = Layout.of(Kind.REAL)
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def simulated(home: Path) -> Layout:
    found = Layout.of(Kind.SIMULATED)
    found.logs.mkdir(parents=True)
    return found


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Function that puts a fake program, a shell script, first on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(name: str, script: str) -> Path:
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return put


GO = r"""#!/bin/sh
echo "$* [$GOFLAGS cgo=$CGO_ENABLED $GOMODCACHE $GOCACHE]" >> "$FAKE/calls"
mkdir -p "$GOMODCACHE" "$GOCACHE"
case "$1" in
env) cat "$FAKE/version" ;;
mod)
  [ "$2" = verify ] && { cat "$FAKE/damage" 2>/dev/null || exit 0; exit 1; }
  if [ -s "$FAKE/outages" ] && read -r first rest < "$FAKE/outages" && [ -n "$first" ]; then
    echo '{"Error": "proxy: 502 Bad Gateway"}'
    echo "$rest" > "$FAKE/outages"
    exit 1
  fi
  printf '{"Dir": "%s"}' "$FAKE/module" ;;
list) cat "$FAKE/list" ;;
build)
  mkdir -p "${GOTMPDIR:-$FAKE}/go-build1"
  if [ -e "$FAKE/broken" ]; then
    cat "$FAKE/broken"
    exit 1
  fi
  while [ "$1" != "-o" ]; do shift; done
  out=$2
  shift 2
  for package in "$@"; do
    case "$package" in
    .) name=$(basename "$PWD") ;;
    */v[0-9]) name=$(basename "$(dirname "$package")") ;;
    *) name=$(basename "$package") ;;
    esac
    printf '#!/bin/sh\necho built\n' > "$out$name"
    chmod +x "$out$name"
  done ;;
esac
"""


FILES = {
    "server.go": "package here\n",
    "python/cmd/pulumi-language-python-exec": "#!/bin/sh\n",
    "python/dist/pulumi-resource-pulumi-python": "#!/bin/sh\n",
    "cmd/pulumi-resource-kubernetes/schema.json": "{}",
    "cmd/pulumi-resource-kubernetes/terraform-mapping.json": "{}",
    "go/kubernetes/provider.go": "package kubernetes\n",
    "go/kubernetes/yaml/v2/kinds.go": "package v2 // with a case for each kind\n",
    "installer/helm/chart/volcano/Chart.yaml": 'name: volcano\nversion: "1.14.0"\napiVersion: v1\n',
    "installer/helm/chart/volcano/templates/scheduler.yaml": "kind: Deployment\n",
    "config/crd/volcano/bases/batch.volcano.sh_jobs.yaml": "kind: CustomResourceDefinition\n",
    "config/crd/jobflow/bases/flow.volcano.sh_jobflows.yaml": "kind: CustomResourceDefinition\n",
    "installer/volcano-development.yaml": (
        "# Source: volcano/templates/webhooks.yaml\nkind: ValidatingWebhookConfiguration\n---\n"
        "# Source: volcano/templates/scheduler.yaml\nkind: Deployment\n"
    ),
    "manifests/base/deployment.yaml": "kind: Deployment\n",
}


LIST = """{"ImportPath": "compiled.example/already", "Dir": "%(folder)s", "Stale": false}
{"ImportPath": "server.example/here", "Dir": "%(folder)s", "GoFiles": ["server.go"], "Stale": true}
"""


@dataclass
class Machine:
    """A machine with a fake Go, an empty cache and nothing else."""

    fake: Path
    cache: Path
    bin: Path
    reported: list[str]

    def calls(self, command: str) -> list[str]:
        file = self.fake / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(f"{command} ")]

    def tool(self, name: str, prints: str) -> Path:
        lines = ("#!/bin/sh", f"echo queried >> {self.fake}/queries", f"echo '{prints}'", "")
        return script(self.bin / name, "\n".join(lines))


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    fake = tmp_path / "fake"
    for name, text in FILES.items():
        # Files in the module cache are read-only.
        script(fake / "module" / name, text).chmod(0o444)
    (fake / "version").write_text("go1.26.8")
    (fake / "list").write_text(LIST % {"folder": fake / "module"})
    script(tmp_path / "go" / "go", GO)
    monkeypatch.setenv("FAKE", str(fake))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "users-pulumi"))
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    monkeypatch.setenv("CGO_ENABLED", "1")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'go'}:{system_tools(tmp_path)}")
    return Machine(fake, tmp_path / "cache", tmp_path / "bin", [])


def system_tools(folder: Path) -> Path:
    """The programs that the scripts of this file need, without other tools of this machine."""
    tools = folder / "system"
    tools.mkdir()
    for name in ("basename", "dirname", "chmod", "cat", "mkdir", "sleep"):
        (tools / name).symlink_to(Path("/usr/bin") / name)
    return tools
