"""Agreement between our parser for stack files and the Pulumi CLI's parser."""

import json

import pytest
import yaml

from gitops.stack_file import parse
from tests.engine.conftest import MakeStack

SCALARS = """\
no yes on Off y N true True FALSE 1:30 4_0 0x1F 0o14 014 08 0b11 1e3 +1e3 1. .5 +5 -0 1.0 1.5 1e400
~ null 1_000.5 = .5.5 - -x 0x 0xg 1e 1_ _1 '5' "no" 1.2.3 16Gi 10.0.0.1
"""
CASES = {
    **{f"s{i}": f"{{v: {text}}}" for i, text in enumerate(SCALARS.replace(" - ", " ").split(" "))},
    "keys": "{1: x, true: y, yes: z, 1.0e3: w}",
    "base": "&base {k: 1, only: 2}",
    "merged before": "{<<: *base, k: 3}",
    "merged after": "{k: 3, <<: *base}",
    "list": "[1, no, [2], {x: off}]",
}
INVALID = ("{x: 1, x: 2}", "{x: .inf}", "&c {x: *c}")


def test_both_parsers_return_the_same_values(engine: MakeStack) -> None:
    stack = engine("simulated")
    text = "".join(f"  gpu-platform:{key}: {value}\n" for key, value in CASES.items())
    outcome = stack.read_configuration(f"config:\n{text}")
    assert outcome.status == 0, outcome.text
    shown = json.loads(outcome.text)
    read = {key: json.loads(entry["value"]) for key, entry in shown.items()}
    written = parse(text)
    assert written == {key: read[key] for key in written}


def test_both_parsers_reject_the_same_texts(engine: MakeStack) -> None:
    stack = engine("simulated")
    for value in INVALID:
        text = f"config:\n  gpu-platform:x: {value}\n"
        assert stack.read_configuration(text).status != 0, value
        with pytest.raises(yaml.YAMLError):
            parse(text)
