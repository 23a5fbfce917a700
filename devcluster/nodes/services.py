"""Services of real nodes and their configuration: containerd, the kubelet and kube-proxy.

The first node also runs CoreDNS, the registry, the chart repository and the Docker engine.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from devcluster.nodes.gpus import Hardware
from devcluster.paths import Layout
from devcluster.spec import ClusterSpec, RealNode
from kube.names import GPU_COUNT_LABEL, GPU_PRODUCT_LABEL
from simulation.supervisor import Service

PAUSE_IMAGE = "127.0.0.1:5000/pause:3.10"
# Paths in the node's file system, not the host's.
REGISTRY_HOSTS = Path("/etc/containerd/certs.d")
CNI_CHAIN = Path("/etc/cni/net.d/10-pods.conflist")
HARDWARE_FILE = Path("/var/lib/kubelet/device-plugins/simulated-gpus.json")
# This socket is next to the one on which the kubelet reports the GPUs of each pod.
GPUS_SOCKET = Path("/var/lib/kubelet/pod-resources/simulated-gpus.sock")


@dataclass(frozen=True)
class NodeServices:
    """Factory for a node's services, which also writes their configuration files."""

    spec: ClusterSpec
    node: RealNode
    layout: Layout
    binaries: Path

    @property
    def directory(self) -> Path:
        """Directory of the node's configuration files."""
        return self.layout.node(self.node.name)

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the node's daemons, with the control plane's address."""
        return self.directory / "kubeconfig"

    def _write(self, name: str, content: object) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return path

    def containerd(self) -> Service:
        """Return the containerd 1.6 service, configured for CNI and the cluster's registry."""
        # restrict_oom_score_adj is set because runc cannot lower the OOM score without
        # CAP_SYS_RESOURCE.
        config = self._write(
            "containerd.toml",
            f"""version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
  # `nvidia` is for the stack's RuntimeClass. With a real GPU, it would be NVIDIA's runtime.
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{REGISTRY_HOSTS}"
""",
        )
        address = self.spec.control_plane.address
        port = self.spec.network.registry_port
        hosts = REGISTRY_HOSTS / f"127.0.0.1:{port}" / "hosts.toml"
        hosts.parent.mkdir(parents=True, exist_ok=True)
        server = f"http://{address}:{port}"
        hosts.write_text(
            f'server = "{server}"\n[host."{server}"]\n  capabilities = ["pull", "resolve"]\n'
        )
        self._write_cni()
        return Service("containerd", ["containerd", "-c", str(config)])

    def _write_cni(self) -> None:
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self.node.pod_range}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,  # nodes and the host have routes to the pods' addresses
            "hairpinMode": True,
            "ipam": ipam,
        }
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        chain = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}
        CNI_CHAIN.write_text(json.dumps(chain))

    def kubelet(self) -> Service:
        """Return the kubelet service, with the node labels that GPU feature discovery would set."""
        config = self._write("kubelet.json", self._kubelet_configuration())
        labels = {
            "nvidia.com/gpu.present": "true",
            GPU_PRODUCT_LABEL: self.spec.gpu_product,
            GPU_COUNT_LABEL: str(self.node.gpus),
        }
        command = [
            str(self.binaries / "kubelet"),
            f"--config={config}",
            f"--kubeconfig={self.kubeconfig}",
            f"--hostname-override={self.node.name}",
            f"--node-ip={self.node.address}",
            "--node-labels=" + ",".join(f"{key}={value}" for key, value in labels.items()),
        ]
        if not self.node.control_plane:
            command.append("--register-with-taints=nvidia.com/gpu=present:NoSchedule")
        return Service("kubelet", command)

    def gpus(self) -> Service:
        """Return the simulated GPU driver's service, and write the file that describes the GPUs."""
        hardware = Hardware(
            product=self.spec.gpu_product,
            memory_mib=self.spec.gpu_memory_mib,
            uuids=self.node.gpu_uuids,
        )
        HARDWARE_FILE.parent.mkdir(parents=True, exist_ok=True)
        HARDWARE_FILE.write_text(hardware.model_dump_json())
        faults = self.layout.gpu_faults(self.node.name)
        files = [str(file) for file in (HARDWARE_FILE, GPUS_SOCKET, faults)]
        return Service("gpus", [sys.executable, "-m", "devcluster.nodes.gpus", *files])

    def _kubelet_configuration(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "readOnlyPort": 0,
            "cgroupDriver": "cgroupfs",
            "failSwapOn": False,
            "failCgroupV1": False,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.layout.pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "clusterDNS": [self.spec.network.dns],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self._write("resolv.conf", "")),
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            # With this isolation, the kubelet would not start, because overlay mounts hide the disk
            # from cAdvisor.
            "localStorageCapacityIsolation": False,
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "4s",
        }

    def kube_proxy(self) -> Service:
        """Return the kube-proxy service, which does not change the host's conntrack limits."""
        config = self._write(
            "kube-proxy.json",
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "clientConnection": {"kubeconfig": str(self.kubeconfig)},
                "hostnameOverride": self.node.name,
                "mode": "iptables",
                "bindAddress": self.node.address,
                "clusterCIDR": self.node.pod_range,
                "conntrack": {
                    "maxPerCore": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                },
            },
        )
        return Service("kube-proxy", [str(self.binaries / "kube-proxy"), f"--config={config}"])

    def coredns(self) -> Service:
        """Return the CoreDNS service, which runs as a process on the node, not in a pod."""
        config = self._write(
            "Corefile",
            f""".:53 {{
    bind {self.node.address}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig "{self.kubeconfig}"
        pods insecure
        ttl 5
    }}
}}
""",
        )
        return Service("coredns", [str(self.binaries / "coredns"), "-conf", str(config)])

    def dns_objects(self) -> dict[str, object]:
        """Return the kube-dns Service, which has no selector, and an EndpointSlice for CoreDNS."""
        names = {"name": "kube-dns", "namespace": "kube-system"}
        protocols = [("dns", "UDP"), ("dns-tcp", "TCP")]
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {**names, "labels": {"k8s-app": "kube-dns"}},
            "spec": {
                "clusterIP": self.spec.network.dns,
                "ports": [
                    {"name": name, "port": 53, "protocol": protocol} for name, protocol in protocols
                ],
            },
        }
        endpoints = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns-host",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.node.address], "conditions": {"ready": True}}],
            "ports": [
                {"name": name, "port": 53, "protocol": protocol} for name, protocol in protocols
            ],
        }
        return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints]}

    def registry(self) -> Service:
        """Return the registry service, which stores its data in the cache directory."""
        config = self._write(
            "registry.json",
            {
                "version": 0.1,
                "log": {"level": "warn"},
                "storage": {
                    "filesystem": {"rootdirectory": str(self.layout.registry)},
                    "delete": {"enabled": True},
                },
                "http": {"addr": f"0.0.0.0:{self.spec.network.registry_port}"},
            },
        )
        return Service("registry", ["docker-registry", "serve", str(config)])

    def chart_repository(self, charts: Path) -> Service:
        """Return the service for the Helm repository, a directory with an index.yaml."""
        port = str(self.spec.network.chart_port)
        options = ["--bind", self.node.address, "--directory", str(charts)]
        return Service("charts", [sys.executable, "-m", "http.server", port, *options])

    def docker(self) -> Service:
        """Return the Docker engine service. Its socket is in the state directory."""
        command = [
            "dockerd",
            f"--host=unix://{self.layout.docker_socket}",
            "--containerd=/run/containerd/containerd.sock",
            "--oom-score-adjust=0",  # for the same reason as containerd's restrict_oom_score_adj
        ]
        return Service("dockerd", command)
