"""Unpacking promtool from Debian's package in concurrent tests."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.infra.observability.promtool import promtool

APT = "#!/bin/sh\nsleep 0.2\ntouch prometheus.deb\n"
DPKG = '#!/bin/sh\nmkdir -p "$3/usr/bin"\ntouch "$3/usr/bin/promtool"\n'


def test_concurrent_callers_unpack_promtool_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("GPU_PLATFORM_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(lambda _: promtool(), range(3)))
    assert all(program.exists() for program in found)
