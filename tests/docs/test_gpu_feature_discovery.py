"""The page's installation of NVIDIA's GPU feature discovery, compared with NVIDIA's chart.

The module proxy has the chart of 0.19; the page names 0.20.
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


def test_the_page_sets_values_that_the_chart_has(chart: Path) -> None:
    written = re.findall(r"--set ([\w.]+)=(\w+)", PAGE)
    assert dict(written) == {
        "devicePlugin.enabled": "false",
        "gfd.enabled": "true",
        "runtimeClassName": "nvidia",
    }
    for name, _ in written:
        found = values(chart)
        for key in name.split("."):
            assert key in found, name
            found = found[key]


def test_nodes_with_gpus_have_the_label_of_the_page(chart: Path) -> None:
    """NVIDIA's number as a vendor of PCI devices is 10de."""
    (label,) = re.findall(r"feature\.node\.kubernetes\.io/pci-\w+\.present", PAGE)
    settings = values(chart)["nfd"]["worker"]["config"]["sources"]["pci"]
    assert settings["deviceLabelFields"] == ["vendor"]
    terms = values(chart)["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    keys = {each["key"] for term in terms for each in term["matchExpressions"]}
    assert {label, *GpuSettings().node_selector} <= keys


def test_node_feature_discovery_comes_with_the_chart(chart: Path) -> None:
    (needed,) = yaml.safe_load((chart / "Chart.yaml").read_text())["dependencies"]
    assert needed["name"] == "node-feature-discovery"
    assert "gfd.enabled" in needed["condition"]
