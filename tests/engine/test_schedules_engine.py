"""A schedule in a stack: preview, policies, and a changed specification."""

import json
import re
from pathlib import Path
from typing import Any

from devcluster.paths import CHECKOUT
from tests.engine.conftest import MakeStack
from tests.infra.examples import DIGEST

IMAGE = f"127.0.0.1:5000/gpu-platform/recorder@sha256:{DIGEST}"
PROGRAM = "ml-simulated/CronJob/digits-schedule"


def test_changed_specification_updates_the_cron_job_and_replaces_templates(
    engine: MakeStack, tmp_path: Path
) -> None:
    def add(config: dict[str, Any]) -> None:
        config["gpu-platform:images"]["workloads"]["recorder"] = {"reference": IMAGE}
        config["gpu-platform:inference"] = {}
        job = config["gpu-platform:training"]["jobs"]["digits"]
        job["schedule"] = {"cron": "0 3 * * *", "time_zone": "Europe/Berlin"}
        job["steps"] = {
            "prepare": {"command": ["./x", "$(outputs.epochs)"], "outputs": {"epochs": "number"}}
        }
        del job["hyperparameters"]["epochs"]
        job["inputs"] = {"epochs": "prepare.epochs"}

    def change(config: dict[str, Any]) -> None:
        config["gpu-platform:training"]["jobs"]["digits"]["hyperparameters"]["seed"] = 7

    stack = engine("simulated", add)
    rules = json.loads((CHECKOUT / "policies" / "config" / "simulated.json").read_text())
    rules.setdefault("no-hidden-token", {}).setdefault("systemWorkloads", []).append(PROGRAM)
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    pack = ("--policy-pack", "policies", "--policy-pack-config", str(tmp_path / "rules.json"))
    previewed = stack.preview(*pack)
    assert previewed.status == 0, previewed.text
    assert re.search(r"digits: the next run starts at \d{4}-\d\d-\d\d 03:00 CES?T", previewed.text)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    assert set(stack.outputs()["runs"]) == {"sweep"}
    before = _by_kind(stack.manifests())
    assert {"CronJob", "Role", "RoleBinding", "ServiceAccount"} <= before.keys()
    assert len(before["JobTemplate"]) == 2
    assert "JobFlow" not in before
    stack.edit(change)
    outcome = stack.up()
    assert outcome.status == 0, outcome.text
    after = _by_kind(stack.manifests())
    assert _names(after["CronJob"]) == _names(before["CronJob"]) == {"digits-schedule"}
    assert _names(after["JobTemplate"]).isdisjoint(_names(before["JobTemplate"]))
    assert after["CronJob"] != before["CronJob"]


def _by_kind(manifests: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for manifest in manifests:
        found.setdefault(manifest["kind"], []).append(manifest)
    return found


def _names(manifests: list[dict[str, Any]]) -> set[str]:
    return {manifest["metadata"]["name"] for manifest in manifests}
