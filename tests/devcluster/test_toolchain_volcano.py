import hashlib
import tarfile
from pathlib import Path

import pytest
import yaml

from devcluster.toolchain.manifests import write_repository


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text('name: volcano\nversion: "1.14.0"\nappVersion: "0.1"\n')
    (folder / "templates" / "scheduler.yaml").write_text("kind: Deployment\n")
    return folder


def repository(chart: Path, to: Path) -> Path:
    to.mkdir()
    write_repository(chart, to)
    return to


def test_chart_package_contains_the_chart_in_a_directory_with_its_name(
    chart: Path, tmp_path: Path
) -> None:
    made = repository(chart, tmp_path / "made")
    with tarfile.open(made / "volcano-1.14.0.tgz") as package:
        assert package.getnames() == ["volcano/Chart.yaml", "volcano/templates/scheduler.yaml"]


def test_chart_index_contains_version_file_and_digest(chart: Path, tmp_path: Path) -> None:
    made = repository(chart, tmp_path / "made")
    (entry,) = yaml.safe_load((made / "index.yaml").read_text())["entries"]["volcano"]
    package = made / entry["urls"][0]
    assert entry["version"] == "1.14.0"
    assert entry["digest"] == hashlib.sha256(package.read_bytes()).hexdigest()


def test_packing_a_chart_is_reproducible(chart: Path, tmp_path: Path) -> None:
    first, second = repository(chart, tmp_path / "a"), repository(chart, tmp_path / "b")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()
