"""Kubernetes quantities, parsed exactly.

The grammar is that of the API's `resource.Quantity`: a decimal number with an optional sign and an
optional binary suffix (`Ki` to `Ei`), decimal suffix (`n` to `E`) or decimal exponent (`e3`).
Values are `Decimal`, so comparisons are exact.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

MEBIBYTE: Final = 2**20
LARGEST: Final = 2**63 - 1
"""Maximum quantity. The API accepts larger values, but caps them at this value."""

_PATTERN = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_MAX_LENGTH = 64
_MAX_EXPONENT = 2 * _MAX_LENGTH
_EXACT = Context(prec=256)
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


class QuantityError(ValueError):
    """A value that is not a quantity."""


class TooLargeError(QuantityError):
    """A quantity above Kubernetes' maximum."""


def parse_quantity(value: Any) -> Decimal:
    """Parse a quantity into its base unit: bytes, cores or a plain number.

    Accept strings and numbers, as the API does. Raise QuantityError for everything else,
    including booleans and white space, and TooLargeError for absolute values above 2^63 - 1.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError(f"{value!r} is not a Kubernetes quantity")
    amount = _parse(value if isinstance(value, str) else repr(value))
    if abs(amount) > LARGEST:
        raise TooLargeError("is larger than Kubernetes' maximum quantity, 2^63 - 1")
    return amount


@lru_cache(maxsize=4096)
def _parse(text: str) -> Decimal:
    match = _PATTERN.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise QuantityError(
            "must be a Kubernetes quantity: a number with an optional suffix, such as 500m, 2, "
            "512Mi or 1.5Gi"
        )
    number = Decimal(match["number"])
    if match["exponent"]:
        return number.scaleb(_exponent(int(match["exponent"])), _EXACT)
    suffix = match["suffix"] or ""
    if suffix in _BINARY_SUFFIXES:
        return _EXACT.multiply(number, Decimal(1024 ** _BINARY_SUFFIXES[suffix]))
    return number.scaleb(_DECIMAL_SUFFIXES.get(suffix, 0), _EXACT)


def _exponent(value: int) -> int:
    """Return an exponent as the API reads it, clamped to a range that suffices for `LARGEST`."""
    if not -(2**63) <= value < 2**63:
        raise QuantityError("must have a smaller exponent")
    # The API truncates exponents to 32 bits without an overflow check.
    wrapped = (value + 2**31) % 2**32 - 2**31
    return max(-_MAX_EXPONENT, min(wrapped, _MAX_EXPONENT))


def quantity_or_none(value: Any) -> Decimal | None:
    """Return a value as the API reads it, capped at `LARGEST`; None if it is not a quantity."""
    try:
        return parse_quantity(value)
    except TooLargeError:
        return Decimal(-LARGEST if str(value).startswith("-") else LARGEST)
    except QuantityError:
        return None


def spell_bytes(amount: Decimal) -> str:
    """Format a number of bytes as in a manifest, rounded down: `12Gi`, `512Mi`."""
    for suffix, power in (("Gi", 3), ("Mi", 2), ("Ki", 1)):
        unit = Decimal(1024**power)
        if amount >= unit and (amount % unit == 0 or amount >= 16 * unit):
            return f"{int(amount // unit)}{suffix}"
    return str(int(amount))
