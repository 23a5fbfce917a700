import base64
import json
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from pulumi.runtime import rpc

from gitops.errors import GitopsError
from gitops.preview import events
from gitops.preview.events import SIGNATURE, UNKNOWN_TEXT, manifest, plain
from gitops.secrets import HIDDEN, Mask
from policies.values import UNKNOWN
from tests.gitops import plans
from tests.gitops.plans import SECRET


def test_replacement_is_reported_as_one_step() -> None:
    claim, other = plans.claim(), plans.claim(volume="other")
    found = plans.plan(
        plans.step("delete-replaced", claim),
        plans.step("replace", claim, other, keys=["spec.volumeName"]),
        plans.step("create-replacement", claim, other),
    )
    (step,) = found.steps
    assert step.operation == "replace"
    assert step.replaced_for == ("spec.volumeName",)


def test_advice_that_would_empty_the_state_is_omitted() -> None:
    diagnostic_text = (
        "the cluster is unreachable. If the cluster was deleted, you can remove this resource from "
        "Pulumi state by rerunning the operation with the PULUMI_K8S_DELETE_UNREACHABLE "
        'environment variable set to "true"'
    )
    found = plans.plan(plans.diagnostic("error", diagnostic_text), result="failed")
    assert found.errors == ("the cluster is unreachable.",)


def test_line_separators_within_strings_do_not_end_an_event(tmp_path: Path) -> None:
    event = plans.diagnostic("warning", "first\x85second\u2028third")
    log = tmp_path / "log"
    log.write_text(json.dumps(event, ensure_ascii=False) + "\n", "utf-8")
    assert events.read(log) == [event]


def test_a_plan_does_not_depend_on_the_order_of_events() -> None:
    log = [
        plans.same(plans.claim()),
        plans.step("create", new=plans.volcano_job()),
        plans.policy("no-host-path", "b"),
        plans.policy("no-host-path", "a"),
        plans.policy("image-tag-fixed", "c", level="advisory"),
        plans.diagnostic("warning", "w"),
    ]
    expected = plans.plan(*log)
    for _ in range(len(log)):
        log = [*log[1:], log[0]]
        assert plans.plan(*log) == plans.plan(*reversed(log)) == expected
    assert [f.message for f in expected.findings] == ["a", "b", "c"]


def test_plan_succeeds_only_with_a_successful_summary() -> None:
    assert plans.plan().succeeded
    assert not plans.plan(result="failed").succeeded
    assert not events.plan([]).succeeded


def test_secrets_are_masked_in_all_output() -> None:
    job = plans.volcano_job(name="hunter2-job")
    job["spec"]["token"] = "hunter2"
    log = [
        plans.step("create", new=job),
        plans.policy("no-literal-secrets", "found hunter2"),
        plans.diagnostic("error", "hunter2 is wrong"),
    ]
    found = events.plan(log, Mask(["hunter2"]))
    assert "hunter2" not in repr(found)
    assert repr(found).count("[secret]") >= 5


def test_debug_messages_are_not_reported() -> None:
    found = plans.plan(plans.diagnostic("debug", "x"), plans.diagnostic("info", "y"))
    assert found.errors == found.warnings == ()


ORIGIN = "using pulumi-resource-kubernetes from $PATH at /usr/bin/pulumi-resource-kubernetes"


def test_warning_about_the_provider_path_is_omitted() -> None:
    found = plans.plan(
        plans.diagnostic("warning", ORIGIN), plans.diagnostic("warning", f"{ORIGIN}\nslow")
    )
    assert found.warnings == ("slow",)


def test_error_contained_in_another_is_reported_once() -> None:
    first = {**plans.diagnostic("error", "no such file"), "sequence": 1}
    first["diagnosticEvent"]["urn"] = "urn:pulumi:prod::gpu-platform::x::digits"
    found = plans.plan(
        first, plans.diagnostic("error", "no such file"), plans.diagnostic("error", "other")
    )
    assert found.errors == ("digits: no such file", "other")


def test_operation_canceled_because_of_another_error_is_not_reported() -> None:
    canceled = plans.diagnostic("error", "failed to run policy: context canceled")
    cause = plans.diagnostic("error", 'deployments.apps "digits" not found')
    assert plans.plan(canceled, cause).errors == ('deployments.apps "digits" not found',)
    assert plans.plan(canceled).errors == ("failed to run policy: context canceled",)


def test_repeated_errors_in_cli_output_are_removed() -> None:
    output = f"warning: {ORIGIN}\nerror: no stack\n\nDiagnostics:\n\nerror: no stack\n"
    assert events.relevant_output(output) == "error: no stack\n\nDiagnostics:"


def test_a_damaged_log_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.write_text('{"sequence": 1}\n{')
    with pytest.raises(GitopsError, match="cannot be read"):
        events.read(log)
    with pytest.raises(GitopsError, match="use the version of Pulumi in requirements"):
        events.plan([{"resourcePreEvent": {"metadata": {"op": 1}}}])


def test_event_log_is_read_from_a_file(tmp_path: Path) -> None:
    log = tmp_path / "events"
    log.write_text(json.dumps(plans.same(plans.claim())) + "\n")
    assert len(events.plan(events.read(log)).steps) == 1


def test_signatures_match_the_pulumi_sdk() -> None:
    assert rpc._special_sig_key == SIGNATURE
    assert SECRET[SIGNATURE] == rpc._special_secret_sig
    assert rpc.UNKNOWN == UNKNOWN_TEXT


@pytest.mark.parametrize(
    "secret", [SECRET, {SIGNATURE: rpc._special_secret_sig, "plaintext": '"hunter2"'}]
)
def test_secret_is_hidden_even_if_its_plaintext_is_present(secret: dict[str, str]) -> None:
    assert plain({"a": [{"password": secret}]}) == {"a": [{"password": HIDDEN}]}


def test_output_without_a_value_is_unknown() -> None:
    mark = {SIGNATURE: rpc._special_output_value_sig}
    assert plain({**mark, "value": 3.0}) == 3
    assert plain(mark) is UNKNOWN
    assert plain({**mark, "value": "x", "secret": True}) == HIDDEN
    assert plain(UNKNOWN_TEXT) is UNKNOWN


def test_kubernetes_secret_data_is_hidden_even_if_not_marked_secret() -> None:
    shown = manifest({"kind": "Secret", "data": {"key": "aHVudGVyMg=="}, "__defaults": []})
    assert shown == {"kind": "Secret", "data": {"key": HIDDEN}}


def test_a_secret_is_masked_in_every_encoding() -> None:
    secret = 'p"ss<word>\n'
    hide = Mask([secret, "123456"])
    encoded = base64.b64encode(secret.encode()).decode()
    for text in (f"x {secret} y", f"--token={encoded}", '{"a": "p\\"ss<word>\\n"}'):
        assert "ss<word>" not in hide(text)
        assert encoded not in hide(text)
        assert HIDDEN in hide(text)
    assert hide.tree({"port": 123456, "on": True, "deep": [secret]}) == {
        "port": HIDDEN,
        "on": True,
        "deep": [HIDDEN],
    }


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
def test_a_secret_is_masked_in_urls_and_inside_longer_base64(before: str) -> None:
    secret = "p@ss/w+rd %1"
    hide = Mask([secret])
    basic = base64.b64encode(f"{before}{secret}:x".encode()).decode()
    shown = hide(f"Authorization: Basic {basic}")
    assert HIDDEN in shown
    # Only characters that also encode bytes around the secret stay visible.
    assert len(basic) - len(shown.replace(HIDDEN, "").split()[-1]) >= len(secret) * 8 // 6 - 1
    for url in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        assert hide(f"https://{url}@host") == f"https://{HIDDEN}@host"


def test_secret_number_is_masked_when_parsed_as_float() -> None:
    assert Mask(["1234"]).tree({"port": 1234.0}) == {"port": HIDDEN}


def test_overlapping_secrets_are_masked_completely() -> None:
    assert Mask(["abc", "abcdef"])("abcdef abc") == f"{HIDDEN} {HIDDEN}"
