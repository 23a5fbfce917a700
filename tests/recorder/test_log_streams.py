from recorder.log_streams import Tail


def test_the_last_lines_are_kept() -> None:
    assert Tail(3, 1000, map(str, range(10))).lines == ["7", "8", "9"]


def test_records_are_limited_in_bytes() -> None:
    kept = Tail(1000, 100, ("x" * 30 for _ in range(50))).lines
    assert sum(map(len, kept)) <= 100
    assert len(kept) == 3


def test_the_end_of_an_oversized_line_is_kept() -> None:
    assert Tail(10, 5, ["beginning and end"]).lines == ["d end"]


def test_a_truncated_character_is_replaced() -> None:
    [line] = Tail(10, 5, ["äöü"]).lines
    assert line.endswith("öü")
