import json
from pathlib import Path
from typing import Any

import pytest

from policies.pack import RULES

FOLDER = Path(__file__).resolve().parents[2] / "policies" / "config"
LEVELS = {"advisory", "mandatory", "remediate", "disabled"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_configuration_files_name_rules_and_fit_their_settings(path: Path):
    rules = {rule.name: rule for rule in RULES}
    config: dict[str, Any] = json.loads(path.read_text())
    for name, values in config.items():
        settings = {"enforcementLevel": values} if isinstance(values, str) else dict(values)
        assert settings.pop("enforcementLevel", "advisory") in LEVELS
        assert name in rules, f"{name} is not a rule"
        rules[name].configure(settings)
