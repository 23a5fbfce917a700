from infra.manifests import compact


def test_what_says_nothing_is_left_out() -> None:
    fields = {"none": None, "empty": {}, "zero": 0, "no": False, "list": [], "text": ""}
    assert compact(fields) == {"zero": 0, "no": False, "list": [], "text": ""}
