"""YAML that is read as kubectl reads it, and YAML that is rejected because it is ambiguous."""

import json
from typing import Any

import pytest

from policies.documents import DocumentError, read

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"


def test_documents_are_read_in_order_and_comment_only_documents_are_skipped() -> None:
    text = f"# a\n---\n{SERVICE}---\n# nothing\n---\n{SERVICE}spec:\n  type: ClusterIP\n---\n"
    first, second = read("f.yaml", text)
    assert first.line() == 3
    assert second.line(("spec", "type")) == second.line(("spec",)) + 1 == 13


def test_separators_may_have_comments_and_texts_may_contain_dashes() -> None:
    text = f"{SERVICE}--- # a\n{SERVICE}a: |\n  ---#\n---\r\n{SERVICE}---#a"
    with pytest.raises(DocumentError, match="line 14"):
        list(read("f.yaml", text))
    assert len(list(read("f.yaml", text.removesuffix("#a")))) == 3


def test_line_of_a_missing_field_is_that_of_its_parent() -> None:
    (document,) = read("f.yaml", f"{SERVICE}spec:\n  ports:\n    - name: a\n    - name: b\n")
    assert document.line(("spec", "ports", 1, "port")) == 7
    assert document.line(("spec", "ports", 5)) == 5
    assert document.line(("status",)) == 1


def test_nested_lists_of_objects_are_expanded() -> None:
    inner = "{apiVersion: v1, kind: PodList, items: [{apiVersion: v1, kind: Pod}]}"
    text = f"apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Secret}}\n- {inner}\n"
    found = list(read("f.yaml", text))
    assert [document.manifest["kind"] for document in found] == ["Secret", "Pod"]
    assert [document.line() for document in found] == [4, 5]


@pytest.mark.parametrize("separator", ["\n", "\n\n", "", "\n---\n"])
def test_json_documents_need_no_separators(separator: str) -> None:
    service = '{"apiVersion": "v1",\n"kind": "Service", "metadata": {"name": "} {"}}'
    text = separator.join([service, service, service]) + "\n"
    found = list(read("f.json", text))
    assert [document.manifest for document in found] == [json.loads(service)] * 3


def test_lines_of_json_documents_are_those_of_the_file() -> None:
    _, second = read(
        "f.json", '{"apiVersion": "v1",\n"kind": "A"}\n{"apiVersion": "v1", "kind": "B"}'
    )
    assert second.line() == 3


def test_json_documents_are_read() -> None:
    (document,) = read("f.json", b'{"apiVersion": "v1", "kind": "Service", "n": 1.0}')
    assert document.manifest["kind"] == "Service"


@pytest.mark.parametrize(
    "text",
    ["🚀", "a 🚀🚀", "\\🚀", "\\\\🚀", "\\ud83d\\ude00", "\n🚀", '"🚀"', "\U0010ffff", "é\u2028"],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_json_may_escape_any_character(text: str, escaped: bool) -> None:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": text}}
    written = json.dumps(manifest, ensure_ascii=escaped)
    for data in (written, written.encode(), f"\n  {written}", json.dumps([manifest])[1:-1]):
        (document,) = read("f.json", data)
        assert document.manifest["metadata"]["name"] == text


def test_unpaired_surrogates_in_json_are_replaced() -> None:
    (document,) = read(
        "f.json", r'{"apiVersion": "v1", "kind": "a\ud83d", "b": "\uDE00\ud83d\ude80"}'
    )
    assert document.manifest["kind"] == "a\ufffd"
    assert document.manifest["b"] == "\ufffd🚀"


def value(text: str) -> Any:
    (document,) = read("f.yaml", f"{SERVICE}v: {text}\n")
    return document.manifest["v"]


# Observed with kubectl 1.34: `kubectl label --local --filename FILE a=b --output json`.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, True) for word in ("y", "Y", "yes", "on", "ON", "true", "True")),
        *((word, False) for word in ("n", "N", "no", "off", "Off", "false", "FALSE")),
        *((word, None) for word in ("", "~", "null", "NULL")),
        *((word, word) for word in ("yEs", "nO", "tRue", "nil", "=", "1:30", "64m", "1-2")),
        *((text, 12) for text in ("12", "014", "0o14", "0O14", "0xC", "0b1100", "1_2", "+12")),
        *((text, 1000) for text in ("1e3", "1E+3", "1000.", "1_000.0")),
        *(("08", 8), (".5", 0.5), (".5_0", 0.5), ("-0x1F", -31), ("-0b11", -3)),
        *(("1e400", "1e400"), ("2026-11-21", "2026-11-21"), ("'y'", "y"), ('"12"', "12")),
        *(("!!str y", "y"), ("!!bool y", True), ("!!int '5'", 5), ("!!binary aGVsbG8=", "hello")),
        ("{true: 1, 1: 2}", {"true": 1, "1": 2}),
        ("{!!bool y: 1}", {"true": 1}),
        ("{y: 1, 'n': 2, 0x10: 3, 1.5: 4}", {"true": 1, "n": 2, "16": 3, "1.5": 4}),
    ],
    ids=str,
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, expected: Any) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_a_number_with_thousands_of_digits_is_a_string() -> None:
    assert value("1" * 5000) == "1" * 5000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{<<: *a, p: 9}", {"p": 9, "q": 2}),
        ("{p: 9, <<: *a}", {"p": 1, "q": 2}),
        ("{<<: [*a, *b]}", {"p": 1, "q": 2, "r": 4}),
        ("{<<: [*b, *a]}", {"p": 3, "q": 2, "r": 4}),
        ("{<<: *b, <<: *a}", {"p": 1, "q": 2, "r": 4}),
        ("{<<: *c}", {"p": 0, "q": 2}),
        ("{'<<': 1}", {"<<": 1}),
    ],
    ids=str,
)
def test_merge_keys_override_earlier_keys(text: str, expected: dict[str, int]) -> None:
    anchors = "a: &a {p: 1, q: 2}\nb: &b {p: 3, r: 4}\nc: &c {<<: *a, p: 0}\n"
    (document,) = read("f.yaml", f"{SERVICE}{anchors}v: {text}\nw: *c\n")
    assert document.manifest["v"] == expected
    assert document.manifest["w"] == {"p": 0, "q": 2}


def test_every_object_with_items_is_read_as_a_list() -> None:
    items = "items:\n- {metadata: {name: a}}\n- {apiVersion: v1, kind: Secret}\n"
    for kind, expected in (("PodList", "Pod"), ("Anything", "Anything")):
        found = list(read("f.yaml", f"apiVersion: v1\nkind: {kind}\n{items}"))
        assert [document.manifest["kind"] for document in found] == [expected, "Secret"]
        assert found[0].manifest["apiVersion"] == "v1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("resources: [a.yaml]", "it has neither apiVersion nor kind"),
        ("kind: Kustomization", "a kustomization; pass the output of kustomize build"),
        ("{apiVersion: kustomize.config.k8s.io/v1alpha1, kind: Component}", "a kustomization"),
    ],
)
def test_documents_that_are_not_objects_are_skipped_and_reported(text: str, reason: str) -> None:
    skipped: list[str] = []
    assert len(list(read("f.yaml", f"{text}\n---\n{SERVICE}", skipped.append))) == 1
    (message,) = skipped
    assert message.startswith(f"f.yaml, document 1: {reason}")


def test_dates_and_non_string_keys_are_read_as_strings() -> None:
    (document,) = read("f.yaml", f"{SERVICE}a: 2026-11-21\nb: {{1: x}}\n")
    assert document.manifest["a"] == "2026-11-21"
    assert document.manifest["b"] == {"1": "x"}


BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "expected_error"),
    [
        (f"{SERVICE}---\nspec: [", "f.yaml, document 2, line 6: invalid YAML"),
        (f"{SERVICE}---\n{SERVICE}spec: {{{{ .x }}}}: 1", "render it first (helm template)"),
        (f"{SERVICE}---\n- 1\n", "f.yaml, document 2: found [1]; write an object"),
        ("just words", 'f.yaml, document 1: found "just words"; write an object'),
        ("kind: Service", "document 1: apiVersion: not set; write a name"),
        ("apiVersion: v1", "document 1: kind: not set"),
        ("apiVersion: 1\nkind: Service", "apiVersion: found 1; write a name"),
        ("apiVersion: v1\nkind: List\nitems: [1]", "document 1, items[0]: found 1"),
        (f"{SERVICE}spec: {{a: 1, a: 2}}", "line 4: invalid YAML: the key 'a' appears"),
        (f"{SERVICE}spec: {{1: 1, '1': 2}}", "the key '1' appears twice"),
        (f"{SERVICE}spec: {{y: 1, on: 2}}", "the key 'true' appears twice"),
        (f"{SERVICE}spec: {{~: 1}}", "a key is null; write a string"),
        (f"{SERVICE}spec: {{[a]: 1}}", "a key is an object or a list"),
        (f"{SERVICE}spec: {{<<: 1}}", "a merge (<<) needs an object"),
        (f"{SERVICE}spec: !!int x", "found 'x', which is not of type int"),
        (f"{SERVICE}spec: !!set {{a}}", "invalid YAML: could not determine"),
        (f"{SERVICE}spec: !!binary _", "its !!binary value is not base64-encoded UTF-8 text"),
        ("apiVersion: v1\nkind: A\nitems: {a: 1}", 'items: found {"a": 1}; write a list'),
        (f"{SERVICE}spec: &s [*s]", "document 1: it refers to itself"),
        (f"{SERVICE}spec: " + "[" * 100_000, "it is nested deeper than 200 levels"),
        (f"{SERVICE}spec: {'[' * 200}{']' * 200}", "it is nested deeper than 200 levels"),
        (f"{SERVICE}{'[' * 5000}", "document 1"),
        (f"{SERVICE}{BOMB}", "its aliases expand to more"),
        (f"{SERVICE}spec: !!python/object:os.system x", "invalid YAML: could not determine"),
        ("\x00", "document 1: invalid YAML"),
        (f"{SERVICE}---#:\n  kind: Pod\n", "line 4: found '---#', which only kubectl reads"),
        (f"{SERVICE}---\N{NO-BREAK SPACE}# a:\n  kind: Pod\n", "line 4: found '---"),
    ],
    ids=range(27),
)
def test_text_that_cannot_be_checked_causes_one_error(text: str, expected_error: str) -> None:
    with pytest.raises(DocumentError) as exc_info:
        list(read("f.yaml", text))
    assert expected_error in str(exc_info.value)
    assert "\n" not in str(exc_info.value)


def test_text_that_is_not_utf8_causes_the_same_type_of_error() -> None:
    with pytest.raises(DocumentError, match=r"f\.yaml, document 1"):
        list(read("f.yaml", b"\xff\xfe\xfa"))
