"""The rights that `python -m gitops access` prints for the pipelines of an environment."""

import subprocess
import sys

import yaml

from devcluster.paths import CHECKOUT
from tests.engine.conftest import MakeStack


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
    assert "the chart volcano also requires permissions" in done.stderr
    roles = [made for made in yaml.safe_load_all(done.stdout) if made["kind"].endswith("Role")]
    namespaces = {role["metadata"].get("namespace", "") for role in roles}
    assert {"", "ml-prod"} < namespaces
    rules = [rule for role in roles for rule in role["rules"]]
    named = [rule for rule in rules if "secrets" in rule["resources"] and "get" in rule["verbs"]]
    assert all(rule["resourceNames"] for rule in named)
    assert {"deployments", "networkpolicies", "persistentvolumeclaims"} <= {
        resource for rule in rules for resource in rule["resources"]
    }
