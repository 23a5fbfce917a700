"""The pages about monitoring match the rules and dashboards."""

import json
import re
from typing import Any

import yaml

from devcluster.paths import CHECKOUT
from infra.monitoring import manifests
from infra.observability.alerts import alerts
from infra.observability.rules import recordings
from infra.settings.monitoring import MonitoringSettings, Thresholds
from policies.catalogue import RULES
from policies.configuration import configure
from policies.documents import read
from policies.evaluation import evaluate
from tests.infra.test_monitoring import args

MONITORING = (CHECKOUT / "docs" / "monitoring.md").read_text()
RUNBOOKS = (CHECKOUT / "docs" / "runbooks.md").read_text()
NOT_TESTED = (CHECKOUT / "docs" / "not-tested.md").read_text()
FAULTS = (CHECKOUT / "tests" / "operators" / "test_5_monitoring.py").read_text()


def test_runbooks_exist_for_exactly_the_alerts() -> None:
    alert_names = [each.name for found in alerts(Thresholds()).values() for each in found]
    assert re.findall(r"^## (\w+)$", RUNBOOKS, re.MULTILINE) == alert_names


def test_page_lists_the_alerts_that_no_test_has_fired() -> None:
    alert_names = {each.name for found in alerts(Thresholds()).values() for each in found}
    fired = set(re.findall(r'\b(\w+)(?:=|": )\{"', FAULTS)) & alert_names
    (listed,) = re.findall(r"The alerts(.*?)have\s+not fired", NOT_TESTED, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == alert_names - fired
    assert len(fired) == 15
    assert "Fifteen alerts fire on real faults" in MONITORING


def test_every_documented_series_is_recorded() -> None:
    recorded = {rule.record for rule in recordings({"NVIDIA-L4": 1.0}, 30)}
    assert set(re.findall(r"gpu_platform:\w+", MONITORING)) <= recorded


def test_examples_on_the_page_are_valid_settings() -> None:
    blocks = re.findall(r"```yaml\n(config:.*?)```", MONITORING, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        written = yaml.safe_load(block)["config"]["gpu-platform:monitoring"]
        assert MonitoringSettings.model_validate(written).grafana.dashboards


def test_policy_pack_accepts_monitoring_with_the_documented_exemptions() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", MONITORING, re.DOTALL)
    assert violations(json.loads(block)) == []
    assert violations({}) != []


def violations(policies: dict[str, Any]) -> list[str]:
    """Return the mandatory violations of all objects."""
    monitoring_args = args(prometheus="operator", grafana={"dashboards": True})
    texts = [json.dumps(manifest) for manifest in manifests(monitoring_args)]
    documents = [document for text in texts for document in read("", text)]
    found = evaluate(documents, configure(policies, RULES), whole_stack=False)
    return [f"{each.rule}: {each.message}" for each in found if each.mandatory]
