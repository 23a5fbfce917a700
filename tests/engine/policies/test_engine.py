"""The pack under the real engine: refusals, remediations and accepted resources."""

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from devcluster.toolchain import Toolchain
from policies.catalogue import VARIABLE
from tests.engine.policies import judged
from tests.engine.policies.judged import Run, program
from tests.policies import manifests
from tests.policies.harness import CONTEXT, UNKNOWN_VALUE, changed


@pytest.fixture
def run(tmp_path: Path, tools: Toolchain) -> Run:
    return program(tmp_path, tools)


def test_violation_of_a_mandatory_rule_suggests_the_fix(run: Run) -> None:
    container = "spec/tasks/0/template/spec/containers/0"
    job = changed(manifests.volcano_job(), (f"{container}/resources/limits/nvidia.com~gpu", "0.5"))
    done = run("preview", [job])
    assert done.returncode != 0
    assert "gpu-counts-whole" in done.stdout
    assert 'Job "digits" in namespace "training"' in done.stdout
    place = 'spec.tasks[0].template.spec.containers[0].resources.limits["nvidia.com/gpu"]'
    assert f'{place}: found "0.5"; write an integer such as 1' in done.stdout


def test_other_rules_are_evaluated_if_an_image_is_unknown(run: Run) -> None:
    container = "spec/tasks/0/template/spec/containers/0"
    job = changed(
        manifests.volcano_job(),
        (f"{container}/image", "unknown"),
        (f"{container}/volumeMounts", [{"name": "unknown", "mountPath": "/checkpoints"}]),
        (f"{container}/securityContext/privileged", True),
    )
    done = run("preview", [job])
    assert done.returncode != 0
    assert "not-privileged" in done.stdout
    assert "shm-mounted" in done.stdout
    assert "can't run policy" not in done.stdout
    assert UNKNOWN_VALUE not in done.stdout
    assert "image-tag-fixed" not in done.stdout


def test_stack_rules_see_all_resources(run: Run) -> None:
    stack = [item for item in manifests.whole_stack() if item["kind"] != "ResourceQuota"]
    done = run("preview", stack)
    assert done.returncode != 0
    assert "namespace-gpu-quota" in done.stdout
    assert "no effective GPU quota in namespace training" in done.stdout


def test_a_helm_release_is_reported_as_unchecked(run: Run) -> None:
    release = {"apiVersion": "helm.sh/v3", "kind": "Release", "metadata": {"name": "volcano"}}
    done = run("preview", [{**release, "chart": "volcano", "name": "batch", "values": {}}])
    (report,) = done.reports
    assert (report.rule, report.level) == ("helm-release-judged", "advisory")
    command = "helm template batch volcano --values FILE | python -m policies.check -"
    assert command in report.message


def test_unknown_rule_in_the_configuration_is_rejected(run: Run) -> None:
    done = run("preview", manifests.whole_stack(), {"no-host-pth": "mandatory"})
    assert done.returncode != 0
    (report,) = done.reports
    assert (report.rule, report.level) == ("configuration", "mandatory")
    assert "did you mean 'no-host-path'?" in report.message


def test_configuration_that_violates_the_schema_is_rejected(run: Run) -> None:
    done = run("preview", [], {"shm-fits-memory": {"share": "half"}})
    assert done.returncode != 0
    assert "shm-fits-memory" in done.stdout + done.stderr
    assert "share" in done.stdout + done.stderr


def test_simulation_rules_accept_settings_but_report_nothing(run: Run) -> None:
    page = (CHECKOUT / "docs" / "simulation.md").read_text()
    settings = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert settings
    done = run("preview", manifests.whole_stack(), settings)
    assert (done.returncode, done.reports) == (0, []), done.stdout + done.stderr
    done = run("preview", [], {"plan-waits-at-most": {"minutes": -1}})
    assert done.returncode != 0
    assert "plan-waits-at-most" in done.stdout + done.stderr


def test_custom_rules_are_evaluated_and_configured(tmp_path: Path, tools: Toolchain) -> None:
    shutil.copy(CHECKOUT / "examples" / "policy-rules" / "team_rules.py", tmp_path)
    run = program(tmp_path, tools, environment={VARIABLE: "team_rules.py"})
    job = manifests.volcano_job()
    config = {"all": "disabled", "owner-named": "mandatory"}
    done = run("preview", [job], config)
    assert done.returncode != 0
    assert [report.rule for report in done.reports] == ["owner-named"]
    label = {"label": next(iter(job["metadata"]["labels"]))}
    done = run(
        "preview", [job], {**config, "owner-named": {"enforcementLevel": "mandatory", **label}}
    )
    assert (done.returncode, done.reports) == (0, []), done.stdout + done.stderr


UNKNOWN_KIND = {
    "apiVersion": "example.com/v1",
    "kind": "Trainer",
    "metadata": {"name": "digits", "namespace": "training"},
    "spec": {"runner": {"image": "busybox", "securityContext": {"privileged": True}}},
}


def test_custom_kinds_are_read_from_the_configuration(run: Run) -> None:
    only = {"all": "disabled", "kind-known": "mandatory", "not-privileged": "mandatory"}
    done = run("preview", [UNKNOWN_KIND], only)
    assert done.returncode != 0
    assert [report.rule for report in done.reports] == ["kind-known"]
    record = {"pods": [{"at": "spec", "containers": ["runner"]}]}
    done = run("preview", [UNKNOWN_KIND], {**only, "kinds": {"Trainer.example.com": record}})
    assert done.returncode != 0
    (report,) = done.reports
    assert report.rule == "not-privileged"
    assert "spec.runner.securityContext.privileged: found true" in report.message


def test_invalid_description_of_a_custom_kind_is_rejected(run: Run) -> None:
    kinds = {"Trainer.example.com": {"pod": []}}
    done = run("preview", manifests.whole_stack(), {"kinds": kinds})
    assert done.returncode != 0
    (report,) = done.reports
    assert (report.rule, report.level) == ("kinds", "mandatory")
    assert "kinds.Trainer.example.com.pod: found []; write one of" in report.message


def test_the_cluster_configuration_applies_to_every_rule(run: Run) -> None:
    limits = "spec/tasks/0/template/spec/containers/0/resources/limits/example.com~card"
    job = changed(manifests.volcano_job(), (limits, "0.5"))
    only = {"all": "disabled", "gpu-counts-whole": "mandatory", "gpu-toleration": "mandatory"}
    refused = run("preview", [job], only)
    assert [report.rule for report in refused.reports] == ["gpu-counts-whole"]
    done = run("preview", [job], {**only, "cluster": {"otherDevices": ["example.com/card"]}})
    assert (done.returncode, done.reports) == (0, []), done.stdout + done.stderr


def test_configuration_that_disables_every_rule_is_rejected(run: Run) -> None:
    done = run("preview", [manifests.volcano_job()], {"all": "disabled"})
    assert done.returncode != 0
    assert "it disables every rule" in done.stdout + done.stderr


def test_exemptions_are_reported_and_expired_ones_rejected(run: Run) -> None:
    def configuration(days: int) -> dict[str, Any]:
        entry = {
            "workload": "training/Job.batch.volcano.sh/digits",
            "rule": "not-privileged",
            "reason": "its driver is replaced",
            "expires": str(datetime.now(UTC).date() + timedelta(days=days)),
        }
        return {"exemptions": {"workloads": [entry]}}

    job = changed(manifests.volcano_job(), (f"{CONTEXT}/privileged", True))
    others = [item for item in manifests.whole_stack() if item["metadata"]["name"] != "digits"]
    done = run("preview", [*others, job], configuration(1))
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = done.reports
    assert (report.rule, report.level) == ("exemption-used", "advisory")
    assert "exempted from not-privileged until" in report.message
    assert "because: its driver is replaced" in report.message
    done = run("preview", [*others, job], configuration(-1))
    assert done.returncode != 0
    assert {report.rule for report in done.reports} == {"exemptions", "not-privileged"}
    assert {report.level for report in done.reports} == {"mandatory"}


def test_unusual_type_tokens_and_patches_do_not_evade_the_pack(run: Run) -> None:
    stack = judged.stack("training")
    done = run("preview", stack)
    assert done.returncode != 0
    refused = {(report.rule, *report.places) for report in done.reports}
    assert refused >= judged.REJECTED
    assert [report for report in done.reports if "itself failed" in report.message] == []
    existing = {"manifest-readable": {"existingObjects": ["training/Deployment/case6x"]}}
    scaled = run("preview", stack[-1:], existing)
    assert scaled.returncode == 0, scaled.stdout + scaled.stderr
