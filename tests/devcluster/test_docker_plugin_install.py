import os
import subprocess
import sys
from pathlib import Path

import pytest

from devcluster.docker_plugin import install

PLUGIN = "plugins/resource-docker-v5.2.0/pulumi-resource-docker"
PYTHON = Path(sys.executable)

CANNOT_DOWNLOAD = "#!/bin/sh\necho tried >> $HOME/tried\nexit 255\n"
DOWNLOADS = f"""#!/bin/sh
mkdir -p $(dirname $PULUMI_HOME/{PLUGIN})
printf official > $PULUMI_HOME/{PLUGIN}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    return tmp_path


def executable(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def path_with(home: Path, pulumi: str) -> str:
    return str(executable(home / "bin" / "pulumi", pulumi).parent)


def test_the_stand_in_is_used_if_the_official_plugin_is_unavailable(home: Path) -> None:
    plugin = install(home / "own", PYTHON, path_with(home, CANNOT_DOWNLOAD))
    assert not plugin.official
    assert "stand-in" in plugin.note
    assert os.access(home / "own" / PLUGIN, os.X_OK)


def test_download_is_attempted_only_once(home: Path) -> None:
    for _ in range(3):
        install(home / "own", PYTHON, path_with(home, CANNOT_DOWNLOAD))
    assert (home / "tried").read_text().count("tried") == 1


def test_downloaded_official_plugin_is_used(home: Path) -> None:
    plugin = install(home / "own", PYTHON, path_with(home, DOWNLOADS))
    assert plugin.official
    assert (home / "own" / PLUGIN).read_text() == "official"


def test_installed_official_plugin_is_kept(home: Path) -> None:
    executable(home / "own" / PLUGIN, "official")
    assert install(home / "own", PYTHON, "/nowhere").official
    assert (home / "own" / PLUGIN).read_text() == "official"


def test_an_official_plugin_replaces_the_stand_in(home: Path) -> None:
    assert not install(home / "own", PYTHON, "/nowhere").official
    users = executable(home / ".pulumi" / PLUGIN, "official")
    plugin = install(home / "own", PYTHON, "/nowhere")
    assert plugin.official
    assert str(users.parent) in plugin.note
    assert (home / "own" / PLUGIN).resolve() == users


def test_the_launcher_starts_a_server_and_prints_its_port(home: Path) -> None:
    install(home / "own", PYTHON, "/nowhere")
    with subprocess.Popen(
        [home / "own" / PLUGIN, "127.0.0.1:9"], stdout=subprocess.PIPE, text=True, cwd=home
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline()
        process.terminate()
    assert 0 < int(port) < 65536
