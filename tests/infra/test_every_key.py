"""Every configuration key is used by a stack whose manifests are tested."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from infra.settings import StackSettings, validate
from infra.settings.schema import DERIVED_HYPERPARAMETERS
from tests.infra.examples import SECRET, stacks


def declared(annotation: Any, seen: set[type] | None = None) -> Iterator[tuple[str, str]]:
    """Yield each model with each of its keys."""
    seen = set() if seen is None else seen
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    if is_model and annotation not in seen:
        seen.add(annotation)
        for name, field in annotation.model_fields.items():
            yield annotation.__qualname__, name
            yield from declared(field.annotation, seen)
    for part in get_args(annotation):
        yield from declared(part, seen)


def used(value: Any) -> Iterator[tuple[str, str]]:
    """Yield each model with each of the keys that a configuration sets."""
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield type(value).__qualname__, name
            yield from used(getattr(value, name))
    elif isinstance(value, dict):
        for item in value.values():
            yield from used(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from used(item)


def test_every_key_is_used_by_one_of_the_stacks() -> None:
    keys = set(declared(StackSettings))
    for values in stacks():
        secrets = SECRET & values.keys()
        settings = validate(values, secrets)
        for concern in values.keys() - secrets:
            keys.discard(("StackSettings", concern))
            keys -= set(used(getattr(settings, concern)))
    keys -= {("TrainingConfig", name) for name in DERIVED_HYPERPARAMETERS}
    assert not keys, "add these keys to tests/infra/every_key.yaml"
