import re
from typing import Any

import pytest

from devcluster.paths import CHECKOUT
from gitops.__main__ import main
from gitops.environments.difference import differences
from infra.settings import validate
from infra.settings.tenancy import QuotaSettings
from tests.infra.examples import changed, good, without

REGISTRY = "123456789012.dkr.ecr.eu-central-1.amazonaws.com"


def sentences(other: dict[str, Any]) -> list[str]:
    return [
        found.between(("one", "other")) for found in differences(validate(good()), validate(other))
    ]


def test_changed_setting_is_shown_with_its_description_and_both_values() -> None:
    description = QuotaSettings.model_fields["gpus"].description
    assert description
    (text,) = sentences(changed("tenancy.quota.gpus", 16))
    assert text == f"`tenancy.quota.gpus` ({description.rstrip('.')}): 32 in one, 16 in other."


def test_default_is_compared_like_an_explicit_value() -> None:
    (text,) = sentences(changed("training.jobs.digits.retries", 7))
    assert ": 3 in one, 7 in other." in text


def test_section_missing_in_one_environment_is_reported_once() -> None:
    (text,) = sentences(without("inference.services.digits"))
    assert text.startswith("`inference.services.digits` is only in one (job digits")


def test_booleans_of_a_missing_section_are_written_as_in_the_configuration() -> None:
    (text,) = sentences(changed("volcano.queues.more", {"weight": 2, "reclaimable": False}))
    assert text == "`volcano.queues.more` is only in other (weight 2, reclaimable false)."


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("training.jobs.digits.hyperparameters.learning_rate", 0.12345678, 0.12345679),
        (
            "images.workloads.training.reference",
            f"{REGISTRY}/gpu-platform/training@sha256:{'0' * 64}",
            f"{REGISTRY}/gpu-platform/training@sha256:{'0' * 63}1",
        ),
        ("training.jobs.digits.env.ARGUMENTS", f"{'x' * 300}0", f"{'x' * 300}1"),
    ],
)
def test_nearly_equal_values_are_shown_in_full(key: str, before: object, after: object) -> None:
    one, other = (validate(changed(key, value)) for value in (before, after))
    (found,) = differences(one, other)
    assert (found.one, found.other) == (str(before), str(after))


def test_equal_environments_have_no_differences() -> None:
    assert sentences(good()) == []


def test_environments_in_the_repository_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "staging", "prod"]) == 2
    out = capsys.readouterr().out
    assert "\ntenancy\n" in out
    assert "8 in staging, 36 in prod" in out
    assert main(["diff", "prod", str(CHECKOUT / "Pulumi.prod.yaml")]) == 0
    assert "have the same settings" in capsys.readouterr().out


def test_a_missing_or_invalid_environment_is_reported(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "prod", "nowhere"]) == 1
    assert "cannot be read" in capsys.readouterr().err
    wrong = tmp_path / "Pulumi.wrong.yaml"
    wrong.write_text("config: {gpu-platform:cluster: {contxt: x}}")
    assert main(["diff", "prod", str(wrong)]) == 1
    assert "did you mean 'context'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("config: {a: é}".encode("latin-1"), "cannot be read: 'utf-8' codec"),
        (b"config: &c {a: *c}", "cannot be read: found unconstructable recursive node"),
        (b"config: " + b"[" * 100_000, "nested deeper than 200 levels"),
        (b"config: {a: " + b"[" * 199 + b"]" * 199 + b"}", "nested deeper than 200 levels"),
        (b"- config", "is not the configuration of a stack"),
    ],
)
def test_an_unreadable_file_is_reported_without_a_traceback(
    content: bytes, message: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Pulumi.odd.yaml"
    file.write_bytes(content)
    assert main(["diff", str(file), "prod"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "Pulumi.odd.yaml" in error
    assert message in error


def test_encrypted_secrets_are_not_printed(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (CHECKOUT / "Pulumi.prod.yaml").read_text()
    for name, value in (("a", "v1:one"), ("b", "v1:two")):
        file = tmp_path / f"Pulumi.{name}.yaml"
        secret = f"env: {{TOKEN: {{secure: {value}}}}}"
        file.write_text(re.sub("^( *)retries: .*", rf"\1{secret}", text, flags=re.MULTILINE))
        assert value in file.read_text()
    assert main(["diff", str(tmp_path / "Pulumi.a.yaml"), str(tmp_path / "Pulumi.b.yaml")]) == 0
    assert "v1:" not in capsys.readouterr().out


def test_literal_secrets_are_hidden() -> None:
    key = "sk-live-0123456789abcdef0123456789abcdef"
    path = "training.jobs.digits.env"
    texts = sentences(changed(path, {"PLAIN_API_KEY": key, "MODE": "fast"}))
    assert any("PLAIN_API_KEY" in text for text in texts)
    assert any("fast" in text for text in texts)
    assert not any(key in text for text in texts)
