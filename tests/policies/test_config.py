"""The configuration files of the project's own stacks."""

from pathlib import Path

import pytest

from policies.catalogue import RULES
from policies.configuration import Configuration, parse

FOLDER = Path(__file__).resolve().parents[2] / "policies" / "config"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
STRICT = ["staging", "prod"]


def configuration(name: str) -> Configuration:
    return parse(FILES[name].read_text(), RULES)


@pytest.mark.parametrize("name", FILES)
def test_configuration_files_name_rules_and_fit_their_settings(name: str):
    assert configuration(name).rules


@pytest.mark.parametrize("name", FILES)
def test_no_environment_needs_an_exemption(name: str):
    text = FILES[name].read_text()
    assert '"exemptions"' not in text
    assert configuration(name).exemptions.refused == []
