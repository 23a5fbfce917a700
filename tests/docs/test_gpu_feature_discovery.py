"""Helm values for GPU feature discovery in docs/clouds.md, checked against NVIDIA's chart.

The Go module proxy provides the chart for 0.19; the page installs 0.20.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.paths import CHECKOUT
from infra.settings.cluster import GpuSettings
from tests.operators.definitions import GoModule, module_folder

PLUGIN = GoModule(
    "github.com/NVIDIA/k8s-device-plugin@v0.19.0",
    "h1:3JBGCsq0moOtpqyYHpevGZNcPKmIJeTiL7qSQ/rC71Q=",
)
PAGE = (CHECKOUT / "docs" / "clouds.md").read_text()
CHART = Path("deployments/helm/nvidia-device-plugin")


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return module_folder(PLUGIN, tmp_path_factory.mktemp("module")) / CHART


def values(chart: Path) -> Any:
    return yaml.safe_load((chart / "values.yaml").read_text())


def test_page_sets_only_values_that_the_chart_defines(chart: Path) -> None:
    flags = re.findall(r"--set ([\w.]+)=(\w+)", PAGE)
    assert dict(flags) == {
        "devicePlugin.enabled": "false",
        "gfd.enabled": "true",
        "runtimeClassName": "nvidia",
    }
    for name, _ in flags:
        found = values(chart)
        for key in name.split("."):
            assert key in found, name
            found = found[key]


def test_chart_selects_gpu_nodes_by_the_label_on_the_page(chart: Path) -> None:
    """NVIDIA's PCI vendor ID is 10de."""
    (label,) = re.findall(r"feature\.node\.kubernetes\.io/pci-\w+\.present", PAGE)
    settings = values(chart)["nfd"]["worker"]["config"]["sources"]["pci"]
    assert settings["deviceLabelFields"] == ["vendor"]
    terms = values(chart)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    keys = {each["key"] for term in terms for each in term["matchExpressions"]}
    assert {label, *GpuSettings().node_selector} <= keys


def test_chart_depends_on_node_feature_discovery(chart: Path) -> None:
    (dependency,) = yaml.safe_load((chart / "Chart.yaml").read_text())["dependencies"]
    assert dependency["name"] == "node-feature-discovery"
    assert "gfd.enabled" in dependency["condition"]
