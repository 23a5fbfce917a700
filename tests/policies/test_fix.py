"""Remediations written to files, with minimal changes that kubectl reads as intended."""

import io
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies.catalogue import RULES_BY_NAME
from policies.check import main
from tests.policies.cases import CASES
from tests.policies.harness import Case

ONLY = {"all": "disabled", "gpu-toleration": "mandatory", "host-network-dns": "mandatory"}
POD = """\
# Written by hand.
apiVersion: v1
kind: Pod
metadata: {name: a,   namespace: ml}  # odd spacing
spec:
    hostNetwork: on
    restartPolicy: "Never"
    containers:
      # The only container.
      - name: main   # trains
        command: ~
        args: [a,b]
        resources: {limits: {nvidia.com/gpu: 1}}
"""
ADDED = [
    "    tolerations:",
    "      - key: nvidia.com/gpu",
    "        operator: Exists",
    "        effect: NoSchedule",
    "    dnsPolicy: ClusterFirstWithHostNet",
]
SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s,  x: ~}\n"
Fix = Callable[..., int]


@pytest.fixture
def fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fix:
    monkeypatch.chdir(tmp_path)

    def run(text: str, *options: str, name: str = "pod.yaml", **config: Any) -> int:
        Path(name).write_bytes(text.encode())
        Path("config.json").write_text(json.dumps(ONLY | config))
        return main([name, "--config", "config.json", "--no-stack-rules", *options])

    return run


def file_content(name: str = "pod.yaml") -> str:
    return Path(name).read_bytes().decode()


def test_fix_adds_only_missing_fields(fix: Fix, capsys: pytest.CaptureFixture[str]) -> None:
    assert fix(POD, "--fix") == 0
    assert file_content().splitlines() == [*POD.splitlines(), *ADDED]
    captured = capsys.readouterr()
    assert captured.err == "fixed pod.yaml: gpu-toleration, host-network-dns\n"
    assert "0 mandatory" in captured.out


MIXED = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  containers:
    - name: main
      resources: {limits: {nvidia.com/gpu: 1}}
      volumeMounts:
        - {name: shm, mountPath: /dev/shm}
  volumes:
  - name: shm
    emptyDir:
      medium: Memory
"""


def test_lists_with_different_indentation_are_kept(fix: Fix) -> None:
    fix(MIXED, "--fix", **{"shm-bounded-memory": "mandatory"})
    added = ["      sizeLimit: 1Gi", "  tolerations:", "    - key: nvidia.com/gpu"]
    lines = file_content().splitlines()
    assert lines[: len(MIXED.splitlines())] == MIXED.splitlines()
    assert lines[len(MIXED.splitlines()) :][:3] == added


def test_dry_run_prints_a_diff_and_does_not_write_the_file(
    fix: Fix, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fix(POD, "--fix", "--dry-run") == 1
    assert file_content() == POD
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- pod.yaml", "+++ pod.yaml"]
    assert [line[1:] for line in lines[2:] if line.startswith(("+", "-"))] == ADDED
    fixed = "\n".join([*POD.splitlines(), *ADDED]) + "\n"
    assert fix(fixed, "--fix", "--dry-run") == 0
    assert capsys.readouterr().out == ""


def test_other_documents_and_line_endings_are_kept(fix: Fix) -> None:
    text = f"{SERVICE}---\n{POD}--- # last\n{SERVICE}"
    assert fix(text, "--fix") == 0
    added = "\n".join(ADDED)
    assert file_content() == f"{SERVICE}---\n{POD}{added}\n--- # last\n{SERVICE}"
    assert fix(POD.replace("\n", "\r\n"), "--fix") == 0
    assert file_content() == f"{POD}{added}\n".replace("\n", "\r\n")


def test_objects_in_lists_are_fixed(fix: Fix) -> None:
    items = POD.replace("\n", "\n  ").replace("# Written by hand.\n  ", "- ").rstrip(" ")
    text = f"kind: List\napiVersion: v1\nitems:\n- {{apiVersion: v1, kind: Secret}}\n{items}"
    assert fix(text, "--fix") == 0
    found = yaml.safe_load(file_content())["items"]
    assert found[0] == {"apiVersion": "v1", "kind": "Secret"}
    assert found[1]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_json_file_is_fixed_as_json(fix: Fix) -> None:
    manifest = yaml.safe_load(POD)
    assert fix(json.dumps(manifest), "--fix", name="pod.json") == 0
    spec = json.loads(file_content("pod.json"))["spec"]
    assert list(spec) == [*manifest["spec"], "tolerations", "dnsPolicy"]


SHARED = """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec:
  tolerations: &shared []
  volumes: *shared
  containers: [{name: main, resources: {limits: {nvidia.com/gpu: 1}}}]
"""


def test_file_is_not_fixed_if_the_fix_would_change_shared_anchors(
    fix: Fix, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fix(SHARED, "--fix") == 1
    assert file_content() == SHARED
    assert "pod.yaml: not fixed (gpu-toleration" in capsys.readouterr().err


def test_merged_keys_are_overridden_by_a_fix(fix: Fix) -> None:
    text = POD.replace("spec:\n", "x: &common {dnsPolicy: ClusterFirst}\nspec:\n    <<: *common\n")
    assert fix(text, "--fix") == 0
    assert yaml.safe_load(file_content())["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_exempted_workloads_are_not_fixed(fix: Fix) -> None:
    day = str(datetime.now(UTC).date() + timedelta(days=9))
    entry = {"workload": "ml/Pod/a", "rule": "gpu-toleration", "reason": "r", "expires": day}
    assert fix(POD, "--fix", exemptions={"workloads": [entry]}) == 0
    assert file_content().splitlines() == [*POD.splitlines(), ADDED[-1]]


def test_flow_style_yaml_is_fixed(fix: Fix) -> None:
    manifest = yaml.safe_load(POD)
    assert fix(yaml.safe_dump(manifest, default_flow_style=True), "--fix") == 0
    assert yaml.safe_load(file_content())["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_utf16_file_is_fixed(fix: Fix) -> None:
    fix(POD)
    Path("pod.yaml").write_bytes(POD.encode("utf-16"))
    assert main(["pod.yaml", "--config", "config.json", "--no-stack-rules", "--fix"]) == 0
    assert file_content().splitlines() == [*POD.splitlines(), *ADDED]


def test_embedded_manifests_are_not_fixed(fix: Fix, capsys: pytest.CaptureFixture[str]) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    text = yaml.safe_dump(config_map | {"data": {"pod.yaml": POD}})
    assert fix(f"{text}---\n{POD}", "--fix") == 1
    assert file_content() == "\n".join([*f"{text}---\n{POD}".splitlines(), *ADDED]) + "\n"
    message = (
        "pod.yaml: not fixed (gpu-toleration, host-network-dns): fix the embedded text by hand"
    )
    assert message in capsys.readouterr().err


def test_pods_of_recorded_kinds_are_fixed(fix: Fix) -> None:
    manifest = yaml.safe_load(POD)
    box = manifest["spec"].pop("containers")
    spec = {"pod": {**manifest["spec"], "boxes": box}}
    manifest |= {"apiVersion": "example.com/v1", "kind": "Thing", "spec": spec}
    record = {"pods": [{"at": "spec.pod", "containers": ["boxes.*"]}]}
    assert fix(yaml.safe_dump(manifest), "--fix", kinds={"Thing.example.com": record}) == 0
    assert "tolerations" in yaml.safe_load(file_content())["spec"]["pod"]


def test_standard_input_cannot_be_fixed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(POD.encode())))
    assert main(["-", "--fix"]) == 2
    assert "--fix writes files" in capsys.readouterr().err


def is_fixable(case: Case) -> bool:
    rule = RULES_BY_NAME[case.rule]
    return rule.remedy is not None and not rule.about_pulumi


@pytest.mark.parametrize(
    "case", [case for case in CASES if is_fixable(case)], ids=lambda case: case.rule
)
def test_fixed_case_passes_its_rule(case: Case, fix: Fix) -> None:
    levels = {"all": "disabled", case.rule: "mandatory"} if not case.config else None
    config = levels or {"all": "disabled", case.rule: case.config}
    text = yaml.safe_dump_all(case.stack(), sort_keys=False)
    disabled = {name: "disabled" for name in ONLY if name not in ("all", case.rule)}
    assert fix(text, **disabled, **config) == 1
    assert fix(text, "--fix", **disabled, **config) == 0
