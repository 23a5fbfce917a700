from infra.settings_reference import PAGE, reference


def test_the_reference_is_current() -> None:
    assert PAGE.read_text() == reference(), "run `python -m infra.settings_reference`"


def test_every_setting_says_what_it_means() -> None:
    rows = [line for line in reference().splitlines() if line.startswith(("| `", "| **`"))]
    assert len(rows) > 100
    assert [row for row in rows if row.split(" | ")[-1].strip(" |") == ""] == []
