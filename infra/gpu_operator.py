"""Values of the chart of NVIDIA's GPU Operator."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from infra.manifests import Manifest, compact, overlay
from infra.settings.cluster import GpuSettings

_CONFIG: Final = "gpu-platform-device-plugin"
_CONTROL_PLANE: Final = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Exists",
    "effect": "NoSchedule",
}


def chart_values(gpu: GpuSettings, plugin_config: Mapping[str, Any]) -> Manifest:
    """Return the chart's values, which override what the typed settings determine.

    `plugin_config` is the configuration of the device plugin.
    """
    operator = gpu.operator
    tolerations = [toleration.manifest for toleration in gpu.tolerations]
    typed: Manifest = {
        "driver": compact({"enabled": operator.driver, "version": operator.driver_version}),
        "toolkit": {"enabled": operator.toolkit},
        "cdi": {"enabled": operator.cdi},
        "mig": {"strategy": gpu.mig_strategy},
        "devicePlugin": {"config": _config(gpu, plugin_config)},
        "gfd": {"enabled": operator.gpu_feature_discovery},
        "nfd": {"enabled": operator.node_feature_discovery},
        # The stack scrapes it itself, with honorLabels and also without the Prometheus operator.
        "dcgmExporter": {
            "enabled": operator.dcgm_exporter,
            "serviceMonitor": {"enabled": False},
        },
        "daemonsets": {"tolerations": tolerations},
        "node-feature-discovery": {"worker": {"tolerations": [_CONTROL_PLANE, *tolerations]}},
    }
    return overlay(typed, operator.values)


def _config(gpu: GpuSettings, plugin_config: Mapping[str, Any]) -> Manifest:
    if gpu.time_slicing is None:
        return {"create": False}
    text = yaml.safe_dump(dict(plugin_config), sort_keys=False)
    return {"create": True, "name": _CONFIG, "default": "all", "data": {"all": text}}
