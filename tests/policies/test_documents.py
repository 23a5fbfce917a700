"""What is read of YAML, and what is refused rather than guessed."""

import pytest

from policies.documents import DocumentError, read

SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"


def test_documents_are_read_in_order_and_comments_are_none():
    text = f"# a\n---\n{SERVICE}---\n# nothing\n---\n{SERVICE}spec:\n  type: ClusterIP\n---\n"
    first, second = read("f.yaml", text)
    assert first.line() == 3
    assert second.line(("spec", "type")) == second.line(("spec",)) + 1 == 13


def test_a_field_that_is_not_there_is_placed_where_it_belongs():
    (document,) = read("f.yaml", f"{SERVICE}spec:\n  ports:\n    - name: a\n    - name: b\n")
    assert document.line(("spec", "ports", 1, "port")) == 7
    assert document.line(("spec", "ports", 5)) == 5
    assert document.line(("status",)) == 1


def test_lists_of_objects_are_unfolded_wherever_they_are_nested():
    inner = "{apiVersion: v1, kind: PodList, items: [{apiVersion: v1, kind: Pod}]}"
    text = f"apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Secret}}\n- {inner}\n"
    found = list(read("f.yaml", text))
    assert [document.manifest["kind"] for document in found] == ["Secret", "Pod"]
    assert [document.line() for document in found] == [4, 5]


def test_json_is_yaml():
    (document,) = read("f.json", b'{"apiVersion": "v1", "kind": "Service", "n": 1.0}')
    assert document.manifest["kind"] == "Service"


def test_anchors_and_merges_are_resolved():
    (document,) = read("f.yaml", f"{SERVICE}a: &a {{x: 1, y: 1}}\nb: {{<<: *a, x: 2}}\n")
    assert document.manifest["b"] == {"x": 2, "y": 1}


def test_dates_and_odd_keys_are_what_kubernetes_reads():
    (document,) = read("f.yaml", f"{SERVICE}a: 2026-11-21\nb: {{1: x}}\n")
    assert document.manifest["a"] == "2026-11-21"
    assert document.manifest["b"] == {"1": "x"}


BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{SERVICE}---\nspec: [", "f.yaml, document 2, line 6: this is not YAML"),
        (f"{SERVICE}---\n{SERVICE}spec: {{{{ .x }}}}: 1", "Render it first, with helm template"),
        (f"{SERVICE}---\n- 1\n", "f.yaml, document 2: found [1]; write an object"),
        ("just words", 'f.yaml, document 1: found "just words"; write an object'),
        ("kind: Service", "document 1: apiVersion: found nothing; write a name"),
        ("apiVersion: v1", "document 1: kind: found nothing"),
        ("apiVersion: 1\nkind: Service", "apiVersion: found 1; write a name"),
        ("apiVersion: v1\nkind: List\nitems: [1]", "document 1, items[0]: found 1"),
        (f"{SERVICE}spec: {{a: 1, a: 2}}", "line 4: this is not YAML: the key 'a' is written"),
        (f"{SERVICE}spec: &s [*s]", "document 1: it refers to itself"),
        (f"{SERVICE}{'[' * 5000}", "document 1"),
        (f"{SERVICE}{BOMB}", "its aliases make it larger"),
        (f"{SERVICE}spec: !!python/object:os.system x", "this is not YAML: could not determine"),
        ("\x00", "document 1: this is not YAML"),
    ],
    ids=range(14),
)
def test_what_cannot_be_judged_is_one_plain_error(text: str, says: str):
    with pytest.raises(DocumentError) as caught:
        list(read("f.yaml", text))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_that_is_no_utf8_is_an_error_of_the_same_kind():
    with pytest.raises(DocumentError, match=r"f\.yaml, document 1"):
        list(read("f.yaml", b"\xff\xfe\xfa"))
