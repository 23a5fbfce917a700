"""Generator of docs/policies.md from the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from policies.binding import config_schema
from policies.catalogue import RULES
from policies.configuration import DECLARED_RULES
from policies.exemptions import KEY
from policies.frameworks import FRAMEWORKS, Reference
from policies.rule import Level, Rule, RuleConfig
from policies.rules import simulated
from policies.settings import RoleConfig
from tools.generate.policy_examples import EXAMPLES, SETTINGS

_TOPICS = {
    "manifests": "Readable manifests",
    "unknown_kinds": "Kinds",
    "gpu_devices": "GPU requests",
    "gpu": "GPUs",
    "gpu_nodes": "GPU nodes",
    "claims": "Claimed devices",
    "shared_memory": "Shared memory",
    "memory_volumes": "Memory volumes",
    "scheduling": "Scheduling",
    "queues": "Queues",
    "retries": "Retries and deadlines",
    "images": "Images",
    "host_access": "Pod security: access to the node",
    "pod_security": "Pod security: baseline",
    "pod_hardening": "Pod security: restricted",
    "secret_values": "Secrets",
    "access": "Access to the API",
    "exposure": "Exposure",
    "extensions": "Extensions of the API server",
    "control_plane": "Control plane",
    "priorities": "Priorities and tolerations",
    "injection": "Annotations",
    "tenancy": "Namespace quotas",
    "network_policies": "Namespace network policies",
    "storage": "Storage",
    "host_volumes": "Volumes on the node",
    "inference": "Inference",
    "models": "Models",
    "rollout": "Rollout",
    "budget": "Budget",
    "sweeps": "Hyperparameter sweeps",
    "preemption": "Sweeps and notebooks next to training",
    "notebooks": "Notebooks",
    "helm": "Helm",
}
_INTRODUCTION = """\
# The policy pack

<!-- Written by `make generate` from policies/; edit it there. -->

This page is for anyone whose plan is rejected by a rule, and for operators who configure the pack.
The rules check every plan before anything changes:

```
pulumi preview --policy-pack policies --policy-pack-config policies/config/dev.json
```

A violated mandatory rule blocks the update; a violated advisory rule is only reported. The
configuration file sets the enforcement level of each rule (`advisory`, `mandatory`, `remediate` if
the rule has a remediation, or `disabled`) and its settings:

```json
{
  "gpu-toleration": { "enforcementLevel": "remediate" },
  "image-registry-allowed": { "allowedRegistries": ["registry.example.com/team"] },
  "image-digest-pinned": "mandatory"
}
```

Unknown rules and settings are errors, so that a typo cannot disable a rule. A configuration that
disables every rule is also an error. Reports list the disabled rules.

The pack replaces internals of `pulumi-policy` so that each resource is decoded only once. It
therefore starts only with version 1.21 of that package. To write custom rules, see
[Check manifests without Pulumi](policies-without-pulumi.md#custom-rules).

Most rules are written for all kinds of objects that run pods. A registry (`kube/workloads/`)
describes more than 200 kinds, about half of which run pods. The record of a kind states where its
objects contain pods and containers, how many pods they may run, and which fields set their queue,
gang and retries. The registry covers Kubernetes, Volcano, Kubeflow, KubeRay, JobSet,
LeaderWorkerSet, Kueue, KServe, Knative, Argo, Tekton, Spark, KEDA, KubeVirt, NVIDIA's operators and
others. In addition, every list of containers is treated as part of a pod spec, even in an unknown
kind.

Manifests inside other objects (AppWrapper, ManifestWork, Crossplane's Object, a ConfigMap with
manifests as text) are checked like any other manifest. If a manifest's text cannot be parsed, for
example because it is a template or invalid YAML, [kind-known](#kind-known) rejects the enclosing
object. ConfigMaps are not rejected, because they may contain any text. Values that are unknown
during a preview are skipped; everything else is checked. If a rule itself fails, the failure is
reported as a violation.

## Custom kinds

[kind-known](#kind-known) rejects an object of an unknown kind that contains a pod, a container, an
image, an unsafe security setting, an accelerator, the URI of a model, a manifest as text or the
target of an autoscaler. It also rejects an object of a known kind if a field that is not in the
kind's record contains a container, a pod, an unsafe security setting or a manifest.
To allow these objects, add a record of the kind to the configuration file, keyed by `Kind.group`:

```json
{
  "kinds": {
    "Trainer.example.com": {
      "pods": [
        {
          "at": "spec.workers.*",
          "containers": ["container"],
          "count": [{ "paths": ["spec.workers.*.replicas"] }]
        }
      ],
      "roles": ["training", "batch"],
      "ends": true,
      "job": { "queue": "queue", "retries": "backoffLimit" }
    }
  }
}
```

The fields of a record are described in `kube/workloads/record.py` (`WorkloadKind`).
Most records need only `pods`. In paths, `*` stands for every item or value, and `[...]` encloses a
key that contains dots. A record of a known kind replaces the built-in one and must describe all
pods of the kind. A kind that runs no pods has the record `{}`. `patterns` lists paths of objects
that look like pods but are not run; it must not exclude every pod of an object. Unknown fields and
malformed paths are errors.

## Workload roles

Some rules apply only to training or only to servers, but most apply to every pod. Each pod has one
role:

| role | pods | additional requirements |
| --- | --- | --- |
| `training` | Pods or GPUs that work together | Queue, gang, bounded retries, shared memory |
| `batch` | Jobs with a single GPU, and steps of pipelines | None |
| `serving` | Servers | Probes, graceful shutdown, availability |
| `interactive` | Notebooks and similar pods with a single GPU | None |
| `system` | Pods without GPUs, unless the kind or a label assigns another role | None |

The kind determines which roles are possible and which one is the default. For example, a Job is
`training` or `batch`, a Volcano Job or PyTorchJob is `training` even without GPUs, and an
InferenceService is always `serving`. A bare Pod with one GPU that runs to completion is `batch`.

The `app.kubernetes.io/component` or `gpu-platform.dev/workload` label on the pod template or the
resource selects one of the possible roles. Its value is `training`, `batch`, `serving` or
`interactive`; by default, `inference` also means `serving`, and `singleuser-server` means
`interactive` (`componentRoles`). The label cannot weaken the requirements for GPUs: if the kind can
be `training`, a workload with more than `smallGpus` GPUs cannot be `batch` or `interactive`, and a
pod that runs to completion cannot be `serving`.

Labels grant no privileges. If a workload, such as the device plugin, needs something that a rule
forbids, add the workload to the rule's `systemWorkloads`. To exempt it from every rule with this
setting, add it to the top-level `systemWorkloads` of the configuration file:

```json
{
  "systemWorkloads": { "workloads": ["gpu-operator/DaemonSet/nvidia-dcgm-exporter"] }
}
```

## Cluster

`cluster` describes the cluster for all rules: devices that are not accelerators
(`otherDevices`), the number of accelerators in claims that the stack does not declare
(`claimDevices`), and the systems that queue training workloads (`queueSystems`). Settings with the
same name in a rule extend these settings. Without `queueSystems`, Kueue's label is accepted even if
Kueue is not installed. For example:

```json
{
  "cluster": {
    "otherDevices": ["example.com/fpga*"],
    "claimDevices": { "ml/network-*": 0 },
    "queueSystems": ["volcano"]
  }
}
```

## Addresses

The configuration refers to an object as `namespace/Kind/name`, and to a custom resource as
`namespace/Kind.group/name`. For example, `ml/Job/eval` is a Kubernetes Job, and
`ml/Job.batch.volcano.sh/digits` is a Volcano Job. Omit the group if it has no dot or ends in
`.k8s.io`. The namespace is `default` if the manifest does not set one, even for cluster-scoped
resources. In settings, `*` matches anything. The address of an exempt object must contain a
namespace or a name. `otherDevices` must not match known GPUs, and `claimDevices` must not match
every claim.

## Exemptions

The configuration file can exempt a workload from a rule by name, with a reason and an expiry date:

```json
{
  "exemptions": {
    "workloads": [
      {
        "workload": "ml/Job/legacy",
        "rule": "no-host-path",
        "reason": "its data moves to a claim with the next release",
        "expires": "2027-01-31"
      }
    ]
  }
}
```

| key | meaning |
| --- | --- |
| `workload` | [Address](#addresses) of the workload. `*` matches anything if `wildcard` is set. |
| `rule` or `rules` | A rule, or a list of rules. |
| `reason` | Reason why the workload cannot comply yet. |
| `expires` | Last day on which the exemption is valid, at most a year ahead. |
| `wildcard` | `true` if `workload` intentionally contains `*`. Default: `false`. |

An exemption that is incomplete, has expired, or names a rule that does not exist is a mandatory
violation of `exemptions` and has no effect. A rule does not remediate a workload that is exempt
from it.
Violations that do not belong to a single object, such as excessive cost, cannot be exempted; raise
the limit instead.

## What the rules do not cover

- Objects that other programs create or change: Helm (from a chart), Argo CD, Flux and Config Sync
  (from a repository), the Pulumi operator (from a program), the Operator Lifecycle Manager (from a
  catalog), Tekton (from a resolver), Dynamo (from a profile), and the API server (through mutating
  admission policies). [helm-release-judged](#helm-release-judged) reports the objects of the stack
  from which such programs create objects, for example a HelmRelease. Check the rendered manifests
  with `helm template … | python -m policies.check -` (see
  [Check manifests without Pulumi](policies-without-pulumi.md)).
- Changes to pods by webhooks, such as sidecars, and by operators whose objects describe only part
  of the pods, such as a NIMService, an InferenceService with a model format, or a SparkApplication.
  Only the part that the object describes is checked.
- Objects outside the stack. List them in the configuration (`existingQueues`,
  `existingNamespaces`, `existingObjects`). [Admission policies](admission.md) check every pod.
"""


_FRAMEWORKS = """\
Rules implement these controls as far as manifests can show compliance. Reports list the controls of
each violated rule.
"""
_SIMULATED = """\
## Simulations

`python -m gitops preview --simulate` evaluates these rules on the simulated decisions of the
scheduler ([Simulations](simulation.md#preview-a-plan)). If several simulations differ, the worst
outcome counts. The pack accepts levels and settings of these rules, but does not evaluate the
rules.
"""
_SHARED = """\
## Shared settings

Many rules have these settings. You can set them for each rule separately; [cluster](#cluster) sets
the first two for all rules.
"""


def page() -> str:
    """Return the content of docs/policies.md."""
    introduction, heading, limits = _INTRODUCTION.partition("## What the rules do not cover\n")
    pack_sections = [_pack_section(rule) for rule in DECLARED_RULES if rule.name != KEY]
    parts = [
        introduction.rstrip(),
        "",
        *pack_sections,
        heading + limits,
        _SHARED,
        _table(_settings(RoleConfig)),
    ]
    parts += ["\n## Overview\n", _overview()]
    parts += ["\n## Security frameworks\n", _FRAMEWORKS.rstrip(), *_coverage()]
    for topic, title in _TOPICS.items():
        parts.append(f"\n## {title}\n")
        parts += [_section(rule) for rule in RULES if rule.topic == topic]
    parts += [_SIMULATED, *map(_simulated_section, simulated.DECLARED_RULES)]
    return "\n".join(parts)


def _coverage() -> Iterator[str]:
    """Yield a table for each framework that maps the framework's controls to rules."""
    for framework in FRAMEWORKS.values():
        yield f"\n### {framework.name}\n\n[Version {framework.version}]({framework.url})\n"
        yield "| control | rules |\n| --- | --- |"
        for control in sorted(framework.controls, key=_numbers):
            found = [rule for rule in RULES if Reference(framework, control) in rule.controls]
            if found:
                names = ", ".join(f"[{rule.name}](#{rule.name})" for rule in found)
                yield f"| {control} | {names} |"


def _numbers(control: str) -> list[int | str]:
    """Return a sort key that places 5.2.10 after 5.2.9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", control)]


def _pack_section(rule: Rule[Any]) -> str:
    return (
        f"### {rule.name}\n\n{rule.description} {rule.reason}\n\n"
        f"*{rule.level.value}, {rule.severity.value}.* {rule.remediation}\n"
    )


def _simulated_section(rule: Rule[Any]) -> str:
    settings = _settings(rule.config)
    return _pack_section(rule) + (f"{_table(settings)}\n" if settings else "")


def _overview() -> str:
    rows = ["| rule | level | severity | remediates | [admission](admission.md) | requirement |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for rule in RULES:
        remediates = "yes" if rule.remedy else ""
        link = f"[{rule.name}](#{rule.name})"
        level, severity = rule.level.value, rule.severity.value
        columns = (link, level, severity, remediates, _admission(rule), rule.description)
        rows.append(f"| {' | '.join(columns)} |")
    return "\n".join(rows)


def _admission(rule: Rule[Any]) -> str:
    if rule.admission is None:
        return ""
    return "partly" if rule.admission.partial else "yes"


def _section(rule: Rule[Any]) -> str:
    lines = [
        f"### {rule.name}\n",
        f"{rule.description} {rule.reason}\n",
        f"*{rule.level.value}, {rule.severity.value}"
        f"{', checked on the whole stack' if rule.scope == 'stack' else ''}.* {rule.remediation}",
    ]
    if rule.controls:
        lines.append(
            "\nImplements " + "; ".join(_control(control) for control in rule.controls) + "."
        )
    if rule.remedy:
        lines.append("With `enforcementLevel: remediate`, the pack applies this change itself.")
    settings = _settings(rule.config)
    shared = [f"`{key}`" for key in settings if key in _settings(RoleConfig)]
    specific = {key: value for key, value in settings.items() if f"`{key}`" not in shared}
    if shared:
        lines.append(f"\nShared settings: {', '.join(shared)}.")
    if specific:
        lines.append(_table(specific))
    return "\n".join([*lines, "", _examples(rule)]) + "\n"


def _control(control: Reference) -> str:
    framework = control.framework
    return f"[{framework.name}]({framework.url}) {framework.version}: {control.control}"


def _examples(rule: Rule[Any]) -> str:
    example = EXAMPLES[rule.name]
    settings = SETTINGS.get(rule.name)
    given = f", with `{json.dumps(settings)}`" if settings else ""
    verdict = "Rejected" if rule.level is Level.MANDATORY else "Reported"
    bad = f"{verdict}{given}:\n\n```yaml\n{example.bad}\n```"
    return f"{bad}\n\nGood:\n\n```yaml\n{example.good}\n```"


def _settings(config: type[RuleConfig]) -> dict[str, Any]:
    schema = config_schema(config)
    return schema.properties if schema is not None else {}


def _table(settings: dict[str, Any]) -> str:
    rows = ["", "| setting | default | meaning |", "| --- | --- | --- |"]
    for key, setting in settings.items():
        default = f"`{json.dumps(setting['default'])}`" if "default" in setting else "none"
        rows.append(f"| `{key}` | {default} | {setting['description']} |")
    return "\n".join(rows)
