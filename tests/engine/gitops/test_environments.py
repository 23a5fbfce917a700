"""New environments and rights of pipelines under the real engine."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from devcluster.paths import CHECKOUT
from tests.engine.conftest import MakeStack


def test_new_environment_passes_every_mandatory_rule_without_edits(
    engine: MakeStack, tmp_path: Path
) -> None:
    environment = engine("simulated")._environment
    (tmp_path / "policies" / "config").mkdir(parents=True)
    flags = ["--nodes", "2", "--gpus-per-node", "8", "--defaults", "--project", str(tmp_path)]
    command = [sys.executable, "-m", "gitops"]
    subprocess.run([*command, "new-environment", "lab", *flags], cwd=CHECKOUT, check=True)
    rules = tmp_path / "policies" / "config" / "lab.json"
    done = subprocess.run(
        [
            *(*command, "preview", "--stack", "lab", "--rendered", "--out", str(tmp_path / "out")),
            *("--config-file", str(tmp_path / "Pulumi.lab.yaml")),
            *("--policy-pack-config", str(rules)),
        ],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    comment = (tmp_path / "out" / "comment.md").read_text()
    assert done.returncode == 2, comment + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["counts"]["create"] > 15
    assert not any(violation["mandatory"] for violation in report["violations"])


def test_rights_cover_every_object_and_charts_are_mentioned(engine: MakeStack) -> None:
    """Production has registry Secrets, charts and system namespaces."""
    done = subprocess.run(
        [sys.executable, "-m", "gitops", "access", "--stack", "prod", "--updaters", "cd"],
        cwd=CHECKOUT,
        env=engine("prod")._environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the volcano chart also requires permissions" in done.stderr
    roles = [made for made in yaml.safe_load_all(done.stdout) if made["kind"].endswith("Role")]
    namespaces = {role["metadata"].get("namespace", "") for role in roles}
    assert {"", "ml-prod"} < namespaces
    rules = [rule for role in roles for rule in role["rules"]]
    named = [rule for rule in rules if "secrets" in rule["resources"] and "get" in rule["verbs"]]
    assert all(rule["resourceNames"] for rule in named)
    assert {"deployments", "networkpolicies", "persistentvolumeclaims"} <= {
        resource for rule in rules for resource in rule["resources"]
    }
