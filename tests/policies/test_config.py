"""The policy configuration files of this project's stacks."""

from pathlib import Path

import pytest

from policies.catalogue import RULES
from policies.configuration import Configuration, parse
from policies.rule import Level

FOLDER = Path(__file__).resolve().parents[2] / "policies" / "config"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
STRICT = ["staging", "prod"]


def configuration(name: str) -> Configuration:
    return parse(FILES[name].read_text(), RULES)


@pytest.mark.parametrize("name", FILES)
def test_configuration_files_contain_only_valid_rules_and_settings(name: str) -> None:
    assert configuration(name).rules


@pytest.mark.parametrize("name", FILES)
def test_environments_have_no_exemptions(name: str) -> None:
    text = FILES[name].read_text()
    assert '"exemptions"' not in text
    assert configuration(name).exemptions.rejected == []


@pytest.mark.parametrize("name", STRICT)
def test_shared_environments_keep_mandatory_rules_and_restrict_registries(name: str) -> None:
    found = configuration(name).rules
    assert {rule.name for rule, _, _ in found} == {rule.name for rule in RULES}
    levels = {rule.name: mandatory for rule, mandatory, _ in found}
    assert all(levels[rule.name] for rule in RULES if rule.level is Level.MANDATORY)
    (registries,) = (config for rule, _, config in found if rule.name == "image-registry-allowed")
    assert registries.model_dump()["allowed_registries"]


def test_prod_requires_image_digests() -> None:
    levels = {rule.name: mandatory for rule, mandatory, _ in configuration("prod").rules}
    assert levels["image-digest-pinned"]
