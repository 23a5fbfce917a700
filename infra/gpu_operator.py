"""Helm values for NVIDIA's GPU Operator."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import yaml

from infra.manifests import PULL_SECRET, Manifest, compact, overlay
from infra.settings.cluster import GpuSettings

_CONFIG: Final = "gpu-platform-device-plugin"
_CONTROL_PLANE: Final = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Exists",
    "effect": "NoSchedule",
}


def chart_values(gpu: GpuSettings, plugin_config: Mapping[str, Any]) -> Manifest:
    """Build the chart values from the settings; `operator.values` takes precedence.

    `plugin_config` is the configuration of the device plugin.
    """
    operator = gpu.operator
    tolerations = [toleration.manifest for toleration in gpu.tolerations]
    values_from_settings: Manifest = {
        "driver": compact({"enabled": operator.driver, "version": operator.driver_version}),
        "toolkit": {"enabled": operator.toolkit},
        "cdi": {"enabled": operator.cdi},
        "mig": {"strategy": gpu.mig_strategy},
        "devicePlugin": {"config": _config(gpu, plugin_config)},
        "gfd": {"enabled": operator.gpu_feature_discovery},
        "nfd": {"enabled": operator.node_feature_discovery},
        # The stack configures scraping itself. The chart's ServiceMonitor would lack honorLabels,
        # and would require the Prometheus operator.
        "dcgmExporter": {"enabled": operator.dcgm_exporter, "serviceMonitor": {"enabled": False}},
        "daemonsets": {"tolerations": tolerations},
        "node-feature-discovery": {"worker": {"tolerations": [_CONTROL_PLANE, *tolerations]}},
    }
    return overlay(values_from_settings, operator.values)


def pull_secrets(values: Mapping[str, Any], in_registry: Callable[[str], bool]) -> Manifest:
    """Return the chart values that add the pull secret to components with images in the registry.

    `in_registry` returns whether an image name, or a prefix of one, belongs to the registry.
    """
    found: Manifest = {}
    for name, section in values.items():
        if not isinstance(section, Mapping):
            continue
        if in_registry(str(section.get("repository"))):
            found[name] = {"imagePullSecrets": [PULL_SECRET]}
        image = section.get("image")
        if isinstance(image, Mapping) and in_registry(str(image.get("repository"))):
            # The subchart for Node Feature Discovery expects objects instead of names.
            found[name] = {"imagePullSecrets": [{"name": PULL_SECRET}]}
    return found


def _config(gpu: GpuSettings, plugin_config: Mapping[str, Any]) -> Manifest:
    if gpu.time_slicing is None:
        return {"create": False}
    text = yaml.safe_dump(dict(plugin_config), sort_keys=False)
    return {"create": True, "name": _CONFIG, "default": "all", "data": {"all": text}}
