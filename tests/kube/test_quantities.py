from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.quantities import LARGEST, QuantityError, parse_quantity, quantity_or_none, spell_bytes
from tests.unicode import ALPHABET


@pytest.mark.parametrize(
    ("value", "amount"),
    [
        ("1", "1"),
        (1, "1"),
        (0.5, "0.5"),
        ("1000m", "1"),
        ("1e3", "1000"),
        ("1E3", "1000"),
        ("1E", "1e18"),
        ("1Ei", "1152921504606846976"),
        ("12Gi", "12884901888"),
        ("1.5Ki", "1536"),
        (".5", "0.5"),
        ("5.", "5"),
        ("-1", "-1"),
        ("+2k", "2000"),
        ("100n", "0.0000001"),
        ("1234567890123456789.123456789", "1234567890123456789.123456789"),
        ("1.5Gi", str(3 * 2**29)),
        ("12E-1", "1.2"),
    ],
)
def test_quantities_are_parsed_exactly(value: object, amount: str) -> None:
    assert parse_quantity(value) == Decimal(amount)


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " 1",
            "1 ",
            "1e",
            "1ki",
            "1K",
            "0x1",
            "1e9223372036854775808",
            "1e1" + "0" * 50,
            "one",
            "1Gi2",
            "\u0661",
            "\u0661Gi",
            "1 Gi",
            "1.2.3",
            "∞",
            "1" * 65,
        ),
        *(None, True, [1], {"a": 1}, float("inf"), float("nan")),
    ],
)
def test_quantities_that_kubernetes_rejects_are_rejected(value: object) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(value)
    assert quantity_or_none(value) is None


@given(st.integers(0, 2**32), st.sampled_from(["Ki", "Mi", "Gi"]))
def test_binary_suffixes_are_powers_of_1024(number: int, suffix: str) -> None:
    power = {"Ki": 1, "Mi": 2, "Gi": 3}[suffix]
    assert parse_quantity(f"{number}{suffix}") == number * 1024**power


@given(st.text(ALPHABET, max_size=20))
def test_arbitrary_text_is_parsed_or_rejected(text: str) -> None:
    amount = quantity_or_none(text)
    assert amount is None or amount.is_finite()


@pytest.mark.parametrize(
    ("amount", "text"),
    [(1024**3, "1Gi"), (1536 * 1024**2, "1536Mi"), (100, "100"), (16 * 1024**3 + 5, "16Gi")],
)
def test_bytes_are_formatted_as_in_manifests(amount: int, text: str) -> None:
    assert spell_bytes(Decimal(amount)) == text


@pytest.mark.parametrize(
    "text",
    [
        "1e99",
        "1e100",
        "1e1000",
        ".1e00100",
        "1e2147483647",
        "9223372036854775808",
        "8Ei",
        "9" * 50 + "Ei",
    ],
)
def test_quantities_above_the_kubernetes_maximum_are_rejected(text: str) -> None:
    with pytest.raises(QuantityError, match="larger than Kubernetes"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        *(("1e99", LARGEST), ("1e1000", LARGEST), ("-8Ei", -LARGEST), ("-1e100", -LARGEST)),
        *(("0e1000", 0), ("1e4294967296", 1), ("1e4294967299", 1000)),
    ],
)
def test_quantities_in_manifests_are_capped_as_in_the_api_server(text: str, amount: int) -> None:
    assert quantity_or_none(text) == amount
