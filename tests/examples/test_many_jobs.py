"""The program in examples/many-jobs with a mocked Pulumi engine."""

import asyncio
import json
import runpy
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime.mocks import MockResourceArgs, set_mocks

from gpu_platform import ArgumentError
from tests.gpu_platform.test_platform_stack import OUTPUTS
from tests.infra.conftest import LOOP, Engine

EXAMPLE = Path(__file__).parents[2] / "examples" / "many-jobs"


class TwoClusters(Engine):
    """Engine in which the current and the configured context are different clusters."""

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        name, outputs = super().new_resource(args)
        if args.name.endswith("kube-system") and "::cluster" not in (args.provider or ""):
            outputs["metadata"] = {"uid": "ffffffff"}
        return name, outputs


def program_outputs(monkeypatch: pytest.MonkeyPatch, **changes: dict[str, Any]) -> dict[str, Any]:
    """Run the program with changed configuration, and return its outputs."""
    configured = yaml.safe_load((EXAMPLE / "Pulumi.sweep.yaml").read_text())["config"]
    values = {**configured, **{f"vision-sweep:{key}": value for key, value in changes.items()}}
    texts = {key: v if isinstance(v, str) else json.dumps(v) for key, v in values.items()}
    asyncio.set_event_loop(LOOP)
    recorded = {**OUTPUTS, "cluster": {"uid": Engine.uid, "identifier": "prod.example.com"}}
    set_mocks(TwoClusters(recorded), project="vision-sweep", stack="sweep")
    pulumi.runtime.set_all_config(texts)
    programs: list[Any] = []
    monkeypatch.setattr(pulumi, "run", programs.append)
    runpy.run_path(str(EXAMPLE / "__main__.py"))
    found: dict[str, Any] = {}

    async def program() -> None:
        found.update(await programs[0]())

    pulumi.runtime.test(program)()
    return found


def test_platform_is_compared_with_the_configured_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert program_outputs(monkeypatch)["runs"].keys() == {"small-batches", "large-batches"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"jobs": {"digits": {"queue": "research", "nodes": "two"}}}, r"nodes is \"two\", but"),
        ({"cluster": {"context": 1}}, r"ClusterSettings\.context is 1"),
    ],
    ids=["invalid job", "invalid cluster"],
)
def test_invalid_settings_are_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ArgumentError, match=reason):
        program_outputs(monkeypatch, **changes)
