import base64

import pytest
from pulumi.runtime import rpc

from gitops.preview.values import HIDDEN, SIGNATURE, UNKNOWN_TEXT, Mask, manifest, plain
from policies.values import UNKNOWN
from tests.gitops.plans import SECRET


def test_the_marks_are_those_of_the_sdk() -> None:
    assert rpc._special_sig_key == SIGNATURE
    assert SECRET[SIGNATURE] == rpc._special_secret_sig
    assert rpc.UNKNOWN == UNKNOWN_TEXT


@pytest.mark.parametrize(
    "secret", [SECRET, {SIGNATURE: rpc._special_secret_sig, "plaintext": '"hunter2"'}]
)
def test_a_secret_is_never_read_even_where_its_text_is_there(secret: dict[str, str]) -> None:
    assert plain({"a": [{"password": secret}]}) == {"a": [{"password": HIDDEN}]}


def test_an_output_is_its_value_and_unknown_without_one() -> None:
    mark = {SIGNATURE: rpc._special_output_value_sig}
    assert plain({**mark, "value": 3.0}) == 3
    assert plain(mark) is UNKNOWN
    assert plain({**mark, "value": "x", "secret": True}) == HIDDEN
    assert plain(UNKNOWN_TEXT) is UNKNOWN


def test_what_a_secret_object_holds_is_hidden_though_nobody_marked_it() -> None:
    shown = manifest({"kind": "Secret", "data": {"key": "aHVudGVyMg=="}, "__defaults": []})
    assert shown == {"kind": "Secret", "data": {"key": HIDDEN}}


def test_a_mask_finds_every_spelling() -> None:
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


def test_a_secret_within_a_secret_leaves_no_rest() -> None:
    assert Mask(["abc", "abcdef"])("abcdef abc") == f"{HIDDEN} {HIDDEN}"
