"""NVIDIA's device plugin or GPU Operator, and the RuntimeClass."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pulumi
import yaml

from infra.component import Component, chart_release
from infra.configuration import RegistryLogin
from infra.manifests import (
    PULL_SECRET,
    Manifest,
    compact,
    network_policy,
    overlay,
    standard_labels,
    system_namespace,
)
from infra.pods import GpuNodes
from infra.settings import StackSettings
from infra.settings.cluster import GpuSettings

PLUGIN: Final = "nvidia-device-plugin"
_KUBELET_SOCKETS: Final = "/var/lib/kubelet/device-plugins"
_CONFIG: Final = "gpu-platform-device-plugin"
_CONTROL_PLANE: Final = {
    "key": "node-role.kubernetes.io/control-plane",
    "operator": "Exists",
    "effect": "NoSchedule",
}


@dataclass(frozen=True, kw_only=True)
class GpuStackArgs:
    """GPU settings, and the registry's credentials.

    If `isolated`, a NetworkPolicy denies all connections to and from the device plugin. `rendering`
    is True if manifests are rendered without a cluster.
    """

    gpu: GpuSettings
    login: RegistryLogin | None = None
    isolated: bool = False
    rendering: bool = False

    @classmethod
    def of(cls, settings: StackSettings, login: RegistryLogin | None) -> Self:
        """Build the arguments from the stack's settings."""
        return cls(
            gpu=settings.gpu,
            login=login,
            isolated=settings.tenancy.network.isolate,
            rendering=settings.cluster.rendering,
        )


class GpuStack(Component):
    """The device plugin or the GPU Operator, and the RuntimeClass."""

    gpu_nodes: GpuNodes
    """GPU resource, node selector, tolerations and RuntimeClass for jobs and services."""

    def __init__(
        self, name: str, args: GpuStackArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("GpuStack", name, opts)
        self.gpu_nodes = gpu_nodes(args.gpu)
        self.create_in_order(name, manifests(args))
        if args.gpu.provider == "gpu-operator":
            chart, login = args.gpu.operator, args.login
            secrets = pull_secrets(chart.values, login.serves) if login else {}
            values = chart_values(args.gpu, plugin_config(args.gpu))
            chart_release(
                self,
                f"{name}-operator",
                "gpu-operator",
                chart,
                overlay(secrets, values),
                rendering=args.rendering,
                login=login if secrets else None,
            )
        self.register_outputs({})


def gpu_nodes(gpu: GpuSettings) -> GpuNodes:
    """Return the GPU resource, node selector, tolerations and RuntimeClass for workloads."""
    return GpuNodes(
        resource=gpu.offered,
        node_selector=gpu.node_selector,
        tolerations=[toleration.manifest for toleration in gpu.tolerations],
        runtime_class=gpu.runtime_class.name if gpu.runtime_class else None,
    )


def manifests(args: GpuStackArgs) -> list[Manifest]:
    """Return all objects that are not part of a chart, in the order of creation."""
    gpu, login = args.gpu, args.login
    use_pull_secret = login is not None and login.serves(gpu.image)
    built: list[Manifest] = []
    if gpu.runtime_class is not None and gpu.runtime_class.create:
        built.append(
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": gpu.runtime_class.name},
                "handler": gpu.runtime_class.handler,
            }
        )
    if gpu.provider == "device-plugin":
        config = yaml.safe_dump(plugin_config(gpu), sort_keys=False)
        built += [
            *system_namespace(gpu.namespace, "gpu-stack"),
            *([login.secret(gpu.namespace)] if login is not None and use_pull_secret else []),
            *([network_policy(gpu.namespace, PLUGIN, [])] if args.isolated else []),
            _config_map(gpu, config),
            _daemon_set(gpu, config, use_pull_secret=use_pull_secret),
        ]
    return built


def plugin_config(gpu: GpuSettings) -> Manifest:
    """Return the contents of the device plugin's configuration file."""
    plugin = {
        "deviceListStrategy": gpu.device_lists,
        "passDeviceSpecs": gpu.pass_device_specs or None,
    }
    flags = {
        "migStrategy": gpu.mig_strategy,
        "nvidiaDriverRoot": gpu.driver_root,
        "plugin": compact(plugin),
    }
    config: Manifest = {"version": "v1", "flags": compact(flags)}
    if gpu.time_slicing is not None:
        config["sharing"] = {
            "timeSlicing": {
                "renameByDefault": gpu.time_slicing.rename,
                "failRequestsGreaterThanOne": gpu.time_slicing.refuse_more_than_one,
                "resources": [{"name": gpu.resource, "replicas": gpu.time_slicing.replicas}],
            }
        }
    return config


def _metadata(gpu: GpuSettings) -> Manifest:
    return {"name": PLUGIN, "namespace": gpu.namespace, "labels": standard_labels(PLUGIN, PLUGIN)}


def _config_map(gpu: GpuSettings, config: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(gpu),
        "data": {"config.yaml": config},
    }


def _daemon_set(gpu: GpuSettings, config: str, *, use_pull_secret: bool) -> Manifest:
    selector = {"app.kubernetes.io/name": PLUGIN}
    checksum = hashlib.sha256(config.encode()).hexdigest()[:16]
    nodes = gpu_nodes(gpu)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(gpu),
        "spec": {
            "selector": {"matchLabels": selector},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {
                    "labels": standard_labels(PLUGIN, PLUGIN),
                    # The plugin reads its configuration only at startup. A new checksum changes the
                    # pod template, which restarts the plugin.
                    "annotations": {"gpu-platform.dev/config": checksum},
                },
                "spec": compact(
                    {
                        "priorityClassName": "system-node-critical",
                        "runtimeClassName": nodes.runtime_class,
                        "imagePullSecrets": [{"name": PULL_SECRET}] if use_pull_secret else None,
                        "automountServiceAccountToken": False,
                        "enableServiceLinks": False,
                        "nodeSelector": dict(nodes.node_selector),
                        "tolerations": list(nodes.tolerations),
                        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                        "containers": [_container(gpu)],
                        "volumes": [
                            {"name": "sockets", "hostPath": {"path": _KUBELET_SOCKETS}},
                            {"name": "config", "configMap": {"name": PLUGIN}},
                            *(
                                {"name": name, "hostPath": {"path": path}}
                                for name, (path, _) in _driver_mounts(gpu).items()
                            ),
                        ],
                    }
                ),
            },
        },
    }


def _container(gpu: GpuSettings) -> Manifest:
    env: list[Any] = [
        {"name": "CONFIG_FILE", "value": "/config/config.yaml"},
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
    ]
    security: Manifest = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    if gpu.mig_strategy != "none":
        # The plugin needs this variable and SYS_ADMIN to read the layout of MIG devices.
        env.append({"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"})
        security = {
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        }
    if gpu.pass_device_specs:
        # NVIDIA's chart also makes the plugin privileged in this case (compatWithCPUManager).
        security = {"privileged": True, "readOnlyRootFilesystem": True}
    return {
        "name": PLUGIN,
        "image": gpu.image,
        "imagePullPolicy": "IfNotPresent",
        "env": env,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": security,
        "volumeMounts": [
            {"name": "sockets", "mountPath": _KUBELET_SOCKETS},
            {"name": "config", "mountPath": "/config", "readOnly": True},
            *(
                compact({"name": name, "mountPath": path, "readOnly": name == "driver" or None})
                for name, (_, path) in _driver_mounts(gpu).items()
            ),
        ],
    }


def _driver_mounts(gpu: GpuSettings) -> dict[str, tuple[str, str]]:
    """Return the host path and mount path of each plugin volume, by volume name.

    For CDI, the plugin reads the driver's files and writes a CDI specification for the runtime.
    """
    uses_cdi = any(each.startswith("cdi-") for each in gpu.device_lists or ())
    mounts: dict[str, tuple[str, str]] = {}
    if uses_cdi or gpu.driver_root is not None:
        mounts["driver"] = (gpu.driver_root or "/", "/driver-root")
    if uses_cdi:
        mounts["cdi"] = ("/var/run/cdi", "/var/run/cdi")
    return mounts


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
