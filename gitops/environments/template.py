"""The text of a new environment: its settings with what one has to know about them."""

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import yaml

STORAGE_KINDS: Final = ("nfs", "cephfs", "existing")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*(:[0-9]+(/[A-Za-z0-9./_:-]+)?)?")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What decides about a new environment."""

    name: str
    context: str
    namespace: str
    team: str
    nodes: int
    gpus_per_node: int
    storage: str
    """One of `STORAGE_KINDS`."""
    storage_class: str
    registry: str
    install_volcano: bool
    install_plugin: bool

    @property
    def gpus(self) -> int:
        """All GPUs of the cluster."""
        return self.nodes * self.gpus_per_node


def text(environment: Environment) -> str:
    """`Pulumi.<name>.yaml`."""
    e = environment
    return f"""\
# yaml-language-server: $schema=gitops/config/stack.schema.json
#
# {e.name}: {e.nodes} nodes with {e.gpus_per_node} GPUs each. Every key is described in
# docs/configuration.md. Secrets are not in this file: `pulumi stack init {e.name}` chooses what
# encrypts them, and `pulumi config set --secret` stores one.
config:
  gpu-platform:cluster:
    # As `kubectl config get-contexts` names it. This stack never reaches another cluster.
    context: {_scalar(e.context)}
  gpu-platform:gpu:
    # true: this stack runs NVIDIA's device plugin. false: the cluster has it, as a managed cluster
    # or one with NVIDIA's GPU operator does.
    install: {_scalar(e.install_plugin)}
    # The label of the nodes that have GPUs.
    node_selector: {{nvidia.com/gpu.present: "true"}}
  gpu-platform:volcano:
    # true: this stack installs the chart of the scheduler. false: the cluster has Volcano.
    install: {_scalar(e.install_volcano)}
    queues:
      # A queue a team. Weights share the cluster while several wait; a capability is a limit.
      {_key(e.team)}: {{weight: 1, capability: {{nvidia.com/gpu: {e.gpus}}}}}
    priority_classes:
      # Names belong to the whole cluster, so they begin with the environment's.
      {_key(f"{e.name}-serving")}: {{value: 1000, description: Models that answer requests}}
      {_key(f"{e.name}-training")}: {{value: 100, preemption: Never, description: Training runs}}
  gpu-platform:storage:
{_storage(e)}    claims:
      # Protected: `pulumi destroy` and an edit that would delete them are refused.
      checkpoints: {{size: 500Gi, storage_class: {_scalar(e.storage_class)}, protect: true}}
      datasets: {{size: 1Ti, storage_class: {_scalar(e.storage_class)}, protect: true}}
  gpu-platform:tenancy:
    namespace: {_scalar(e.namespace)}
    # The most that all pods of the namespace may ask for together.
    quota: {{gpus: {e.gpus}, pods: 100, claims: 10}}
    network:
      # Only these namespaces may call the models; empty allows the whole cluster.
      inference_from: []
  gpu-platform:images:
    # Built from this repository by `pulumi up` and pushed with the login of the machine's Docker.
    registry: {_scalar(e.registry)}
    workloads:
      training:
        build:
          dockerfile: training/Dockerfile
          # An image with Python 3.11 and torch; what else is needed the Dockerfile installs.
          base_image: {_scalar(f"{e.registry}/base/pytorch:2.15.0-cuda")}
          sources: [training, workload, requirements/workload.txt]
      inference:
        build:
          dockerfile: inference/Dockerfile
          base_image: {_scalar(f"{e.registry}/base/pytorch:2.15.0-cuda")}
          sources: [inference, workload, requirements/workload.txt]
  gpu-platform:training:
    jobs:
      # A small run that needs no data set, to see that everything works.
      digits:
        queue: {_scalar(e.team)}
        priority_class: {_scalar(f"{e.name}-training")}
        nodes: 1
        gpus_per_node: 1
        cpu: 4
        memory: 16Gi
        # Part of the memory; a rule of thumb is 4Gi a GPU.
        shm: 4Gi
        # A hung attempt ends after a day; a finished run is removed after a week.
        attempt_deadline_seconds: 86400
        ttl_seconds: 604800
        hyperparameters: {{model: digits-net, dataset: digits, epochs: 20}}
  gpu-platform:inference:
    services: {{}}
"""


def rules(environment: Environment) -> str:
    """`policies/config/<name>.json`: registries and GPUs that the policies allow there."""
    plugin = ["gpu-system/DaemonSet/nvidia-device-plugin"] if environment.install_plugin else []
    registries = [environment.registry, *(["nvcr.io/nvidia"] if plugin else [])]
    trusted: dict[str, Any] = {}
    if plugin:
        trusted = {
            "run-as-non-root": {"systemWorkloads": plugin},
            "no-host-path": {"systemWorkloads": plugin},
        }
    budget = {"maxGpus": environment.gpus, "maxGpusPerQueue": {environment.team: environment.gpus}}
    values = {
        "image-registry-allowed": {"allowedRegistries": registries},
        **trusted,
        "training-ends": "mandatory",
        "gpu-budget": budget,
    }
    return json.dumps(values, indent=2) + "\n"


def _storage(environment: Environment) -> str:
    e = environment
    if e.storage == "existing":
        return ""
    lines = {
        "nfs": [
            "# Needs the NFS CSI driver, which makes a folder of the share for each claim.",
            f"{_key(e.storage_class)}:",
            "  kind: nfs",
            "  # Replace with your server and its export.",
            "  parameters: {server: nfs.example.com, share: /exports/gpu-platform}",
            "  mount_options: [nfsvers=4.1, hard, noatime]",
        ],
        "cephfs": [
            "# Needs the CephFS CSI driver, and its Secret with userID and userKey.",
            f"{_key(e.storage_class)}:",
            "  kind: cephfs",
            "  expandable: true",
            "  # Replace with your cluster, file system and pool.",
            "  parameters:",
            "    clusterID: 00000000-0000-0000-0000-000000000000",
            "    fsName: cephfs",
            "    pool: cephfs-data",
            "    csi.storage.k8s.io/provisioner-secret-name: csi-cephfs",
            "    csi.storage.k8s.io/provisioner-secret-namespace: ceph-csi",
            "    csi.storage.k8s.io/node-stage-secret-name: csi-cephfs",
            "    csi.storage.k8s.io/node-stage-secret-namespace: ceph-csi",
        ],
    }[e.storage]
    return "    classes:\n" + "".join(f"      {line}\n" for line in lines)


def _scalar(value: str | bool) -> str:
    """A value as YAML: JSON is YAML, and quotes are only written where they are needed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    is_plain = _PLAIN.fullmatch(value) and yaml.safe_load(value) == value
    return value if is_plain else json.dumps(value)


_key = _scalar
