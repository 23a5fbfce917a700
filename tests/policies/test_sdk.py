"""The pack starts only with a supported version of the Pulumi policy SDK."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pulumi_policy import policy, proxy

from policies import sdk
from tests.policies.harness import Manifest

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_installed_version_is_supported() -> None:
    sdk.check()


def test_supported_version_range_matches_pyproject() -> None:
    project: Manifest = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    (requirement,) = project["project"]["optional-dependencies"]["policies"]
    oldest, upper_bound = (
        ".".join(map(str, numbers)) for numbers in (sdk.MIN_VERSION, sdk.VERSION_LIMIT)
    )
    assert requirement == f"{sdk.PACKAGE}>={oldest},<{upper_bound}"


@pytest.mark.parametrize("found", ["1.20.9", "1.22.0", "2.0.0"])
def test_unsupported_sdk_versions_are_rejected(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "version", lambda _: found)
    with pytest.raises(SystemExit, match=rf"found pulumi-policy {found}.* install pulumi-policy>="):
        sdk.check()


def test_error_names_missing_and_changed_sdk_internals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(policy._PolicyAnalyzerServicer, "_get_policy_config")
    monkeypatch.setattr(proxy, "unknown_checking_proxy", lambda values, cache: values)
    with pytest.raises(SystemExit) as exit_info:
        sdk.check()
    text = str(exit_info.value)
    assert "policy:_PolicyAnalyzerServicer._get_policy_config" in text
    assert "proxy:unknown_checking_proxy" in text
    assert "policy:_PolicyAnalyzerServicer.Analyze" not in text


def test_sdk_whose_proxies_cannot_be_unwrapped_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "unknown_checking_proxy", lambda values: dict.fromkeys(values))
    with pytest.raises(SystemExit, match="whose properties cannot be unwrapped"):
        sdk.check()


def test_pack_reports_an_unsupported_sdk_at_startup(tmp_path: Path) -> None:
    # This package shadows the installed SDK and pretends to be a newer version.
    (tmp_path / "pulumi_policy-9.9.9.dist-info").mkdir()
    metadata = tmp_path / "pulumi_policy-9.9.9.dist-info" / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: pulumi-policy\nVersion: 9.9.9\n")
    completed = subprocess.run(
        [sys.executable, CHECKOUT / "policies", "127.0.0.1:1"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 1
    assert completed.stderr.startswith("gpu-platform: found pulumi-policy 9.9.9, whose internals")
    assert "Traceback" not in completed.stderr
