"""The pre-commit hooks for other repositories."""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.policies import manifests

CHECKOUT = Path(__file__).resolve().parents[2]
HOOKS: list[dict[str, Any]] = yaml.safe_load((CHECKOUT / ".pre-commit-hooks.yaml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hook_runs_the_installed_command_with_its_arguments(
    hook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifests").mkdir()
    job = manifests.volcano_job()
    (tmp_path / "manifests" / "job.yaml").write_text(yaml.safe_dump(job))
    module, _, function = PROJECT["project"]["scripts"][hook["entry"]].partition(":")
    # In the checkout, the packages of the wheel are top-level packages.
    run = getattr(import_module(module.removeprefix("gpu_platform.")), function)
    files = [] if hook.get("pass_filenames") is False else ["manifests/job.yaml"]
    single_files = "--no-stack-rules" in hook["args"]
    assert run([*hook["args"], *files]) == (0 if single_files else 1)


def test_wheel_depends_on_the_packages_that_the_check_imports() -> None:
    names = {text.partition(">")[0] for text in PROJECT["project"]["dependencies"]}
    assert names == {"pydantic", "pyyaml", "ruamel.yaml"}
