from pathlib import Path

from policies.docs import page
from policies.pack import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "policies.md"


def test_the_page_is_what_the_rules_say():
    assert PAGE.read_text() == page(), "run: python -m policies.docs > docs/policies.md"


def test_every_rule_has_its_section():
    text = page()
    assert all(f"\n### {rule.name}\n" in text for rule in RULES)
