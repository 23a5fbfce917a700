"""`python -m infra.outputs_table` writes the table of docs/reuse.md from the outputs' types."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from infra.output_types import PLATFORM_OUTPUTS

PAGE: Final = Path(__file__).parent.parent / "docs" / "reuse.md"
_PLACE: Final = re.compile(
    r"(<!-- outputs: written by `python -m infra.outputs_table` -->\n).*?(<!-- end -->)", re.DOTALL
)


def outputs_table() -> str:
    """One row for each output and each field in it."""
    schema = PLATFORM_OUTPUTS.json_schema()
    head = ["| output | value | meaning |", "| --- | --- | --- |"]
    return "\n".join([*head, *_rows(schema, schema["$defs"], "")]) + "\n"


def with_table(page: str) -> str:
    """The page with the table as it is now. Raises ValueError where it has no place."""
    text, count = _PLACE.subn(lambda place: place[1] + outputs_table() + place[2], page)
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} places for the table: it needs one")
    return text


def _rows(schema: dict[str, Any], models: dict[str, Any], path: str) -> Iterator[str]:
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        place = f"{path}.{name}" if path else name
        kind, step, inner = _kind(field, models)
        optional = "" if name in required else ", or absent"
        yield f"| `{place}` | {kind}{optional} | {field['description']} |"
        if inner is not None:
            yield from _rows(inner, models, place + step)


def _kind(field: dict[str, Any], models: dict[str, Any]) -> tuple[str, str, dict[str, Any] | None]:
    """Words for a value, what stands between its place and its fields, and the model of those."""
    if "$ref" in field:
        return "mapping", "", models[field["$ref"].rpartition("/")[2]]
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"]), "", None
    if field["type"] == "array":
        kind, _, inner = _kind(field["items"], models)
        return f"list of {kind}", "[]", inner
    if field["type"] == "object":
        kind, _, inner = _kind(field["additionalProperties"], models)
        return f"mapping to {kind}", ".<name>", inner
    return {"string": "text", "integer": "whole number"}[field["type"]], "", None


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
