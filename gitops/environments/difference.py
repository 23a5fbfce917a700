"""What differs between two environments, in words."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from infra.settings import StackSettings
from infra.settings.schema import description

Steps = tuple[str, ...]


@dataclass(frozen=True)
class Words:
    """One difference: where, and what it is in a sentence."""

    path: Steps
    text: str

    @property
    def concern(self) -> str:
        """The section that it belongs to."""
        return self.path[0]


def differences(one: StackSettings, other: StackSettings, names: tuple[str, str]) -> list[Words]:
    """Every setting in which two environments differ, defaults included."""
    return list(_compare(one, other, (), names))


def _compare(one: Any, other: Any, path: Steps, names: tuple[str, str]) -> Iterator[Words]:
    first, second = _entries(one), _entries(other)
    if first is None or second is None:
        if one != other:
            yield Words(path, _changed(path, one, other, names))
        return
    for key in [*first, *(key for key in second if key not in first)]:
        place = (*path, key)
        if key not in second:
            yield Words(place, f"`{_dotted(place)}` is only in {names[0]}{_brief(first[key])}.")
        elif key not in first:
            yield Words(place, f"`{_dotted(place)}` is only in {names[1]}{_brief(second[key])}.")
        else:
            yield from _compare(first[key], second[key], place, names)


def _entries(value: Any) -> dict[str, Any] | None:
    """Settings and mappings by key; None for everything else."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    return value if isinstance(value, dict) else None


def _changed(path: Steps, one: Any, other: Any, names: tuple[str, str]) -> str:
    meaning = description(StackSettings, path)
    explained = f" ({meaning.removesuffix('.')})" if meaning else ""
    return (
        f"`{_dotted(path)}`{explained}: {_shown(one)} in {names[0]}, {_shown(other)} in {names[1]}."
    )


def _dotted(path: Steps) -> str:
    return ".".join(path)


def _brief(value: Any) -> str:
    """What stands first in an entry that only one of them has."""
    if isinstance(value, BaseModel):
        written = value.model_dump(exclude_unset=True)
        scalars = [
            f"{key} {item}" for key, item in written.items() if isinstance(item, str | int | float)
        ]
        return f" ({', '.join(scalars[:4])})" if scalars else ""
    return f" ({_shown(value)})" if _entries(value) is None else ""


def _shown(value: Any) -> str:
    if value is None or value in ([], {}):
        return "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, BaseModel | dict):
        return f"written{_brief(value)}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(_item(item) for item in value)
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


def _item(value: Any) -> str:
    written = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
    return (
        " ".join(f"{k}={v}" for k, v in written.items())
        if isinstance(written, dict)
        else str(written)
    )
