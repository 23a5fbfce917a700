"""docs/policies.md, generated from the rules."""

from __future__ import annotations

import json
from typing import Any

from policies.binding import config_schema
from policies.catalogue import RULES
from policies.rule import Level, Rule, RuleConfig
from policies.settings import RoleConfig
from tools.generate.policy_examples import EXAMPLES, SETTINGS

_TOPICS = {
    "manifests": "Readable manifests",
    "gpu": "GPUs",
    "shared_memory": "Shared memory",
    "scheduling": "Scheduling",
    "images": "Images",
    "security": "Security",
    "tenancy": "Namespaces",
    "storage": "Storage",
    "inference": "Inference",
    "rollout": "Rollout",
    "budget": "Budget",
    "helm": "Helm",
}
_INTRODUCTION = """\
# The policy pack

<!-- Written by `make generate` from policies/; edit it there. -->

Every plan is judged by these rules before anything changes:

```
pulumi preview --policy-pack policies --policy-pack-config policies/config/dev.json
```

A mandatory rule refuses the plan; an advisory rule only says so. Each can be set to `advisory`,
`mandatory`, `remediate` (where there is a remediation) or `disabled` in the configuration file,
which also holds the settings of each rule:

```json
{
  "gpu-toleration": { "enforcementLevel": "remediate" },
  "image-registry-allowed": { "allowedRegistries": ["registry.example.com/team"] },
  "image-digest-pinned": "mandatory"
}
```

A name that no rule has and settings that a rule does not take are refused: a typing error must not
switch a rule off in silence.

Rules do not ask for kinds. Whatever holds a list of containers is a pod specification to them: in a
Deployment, a CronJob, a Volcano task, a PyTorchJob's replica, a JobSet inside a TrainingRuntime, a
Ray worker group or a custom resource that this pack has never heard of; init containers, sidecars
and ephemeral containers included. What a preview does not know yet is not judged, and everything
beside it is. A rule that fails reports its own failure as a violation.

## What a pod is for

Some rules hold for training, some for inference, most for every pod.

- The label `app.kubernetes.io/component` or `gpu-platform.dev/workload` with the value `training`
  or `inference`, on the pod template or on the resource, decides.
- Volcano Jobs, PyTorchJobs, TFJobs, MPIJobs, TrainJobs, TrainingRuntimes and their relatives are
  training whatever their labels say.
- Without such a label, a pod that asks for a GPU is training if it runs to its end (a Job, CronJob
  or JobSet, or any pod with restartPolicy Never or OnFailure), and inference if a Deployment,
  ReplicaSet or StatefulSet keeps it alive.

Labels give no privileges. A workload that needs what a rule forbids to all others, such as the
device plugin, is named in that rule's `systemWorkloads` as `namespace/Kind/name`.

## Exemptions

A workload that cannot keep a rule yet is exempted by name, in the configuration file, for a reason
and until a day:

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

The workload is `namespace/Kind/name` (of the namespace `default` where none is written, also for
what has no namespace). Every report says what was exempted, why and until when, as an advisory
violation of `exemption-used`. An exemption that has expired, has no reason, or names no rule is
refused by a mandatory violation of `exemptions`, and exempts nothing. An exempted workload is not
repaired by that rule either. What a rule says of the stack as a whole, such as its cost, cannot be
exempted; raise the limit.

## What the rules do not see

- A Helm release (`helm.v3.Release`, or a `HelmRelease` or `HelmChart` of a controller in the
  cluster) is a set of values: what its chart makes of them is not judged, and
  [helm-release-judged](#helm-release-judged) says so for each. `helm template … |
  python -m policies.check -` judges it, see
  [the rules without Pulumi](policies-without-pulumi.md).
- Stack rules judge what the stack declares. What exists outside of it is named in their
  configuration: `existingQueues`, `existingNamespaces`.
"""


_SHARED = """\
## Settings that many rules share

Each rule has its own copy, so that one can be set without the others.
"""


def page() -> str:
    """Return docs/policies.md."""
    parts = [_INTRODUCTION, _SHARED, _table(_settings(RoleConfig))]
    parts += ["\n## Overview\n", _overview()]
    for topic, title in _TOPICS.items():
        parts.append(f"\n## {title}\n")
        parts += [_section(rule) for rule in RULES if rule.topic == topic]
    return "\n".join(parts)


def _overview() -> str:
    rows = ["| rule | level | severity | repairs | what it asks for |"]
    rows.append("| --- | --- | --- | --- | --- |")
    for rule in RULES:
        repairs = "yes" if rule.remedy else ""
        link = f"[{rule.name}](#{rule.name})"
        level, severity = rule.level.value, rule.severity.value
        rows.append(f"| {link} | {level} | {severity} | {repairs} | {rule.description} |")
    return "\n".join(rows)


def _section(rule: Rule[Any]) -> str:
    lines = [
        f"### {rule.name}\n",
        f"{rule.description} {_why(rule)}\n",
        f"*{rule.level.value}, {rule.severity.value}"
        f"{', judged on the whole stack' if rule.scope == 'stack' else ''}.* {rule.remediation}",
    ]
    if rule.remedy:
        lines.append("With `enforcementLevel: remediate` the pack makes this change itself.")
    settings = _settings(rule.config)
    shared = [f"`{key}`" for key in settings if key in _settings(RoleConfig)]
    own = {key: value for key, value in settings.items() if f"`{key}`" not in shared}
    if shared:
        lines.append(f"\nSettings shared by many rules: {', '.join(shared)}.")
    if own:
        lines.append(_table(own))
    return "\n".join([*lines, "", _examples(rule)]) + "\n"


def _examples(rule: Rule[Any]) -> str:
    example = EXAMPLES[rule.name]
    settings = SETTINGS.get(rule.name)
    given = f", with `{json.dumps(settings)}`" if settings else ""
    verdict = "Refused" if rule.level is Level.MANDATORY else "Advised against"
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


def _why(rule: Rule[Any]) -> str:
    return " ".join((rule.check.__doc__ or "").split())
