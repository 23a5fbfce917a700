"""Descriptions, keys and value kinds read from the settings models."""

from infra.settings import StackSettings
from infra.settings.schema import description, fields, keys, schema_of
from infra.settings.training.job import TrainingJobSettings

FIELDS = {field.name: field for field in fields(schema_of(TrainingJobSettings))}


def test_description_is_found_through_mappings() -> None:
    path = ("training", "jobs", "digits", "nodes")
    assert description(StackSettings, path) == FIELDS["nodes"].description
    assert description(StackSettings, ("volcano", "values", "anything")) == ""
    assert description(StackSettings, ("nowhere",)) == ""


def test_keys_are_found_through_lists_mappings_and_optional_sections() -> None:
    assert "claim" in keys(StackSettings, ("training", "jobs", "digits", "volumes", "data"))
    assert "key" in keys(StackSettings, ("gpu", "tolerations", 0))
    assert "epochs" in keys(StackSettings, ("training", "jobs", "digits", "hyperparameters"))
    assert keys(StackSettings, ("training", "jobs", "digits", "nodes")) == []


def test_schema_omits_hyperparameters_that_the_stack_sets() -> None:
    found = keys(TrainingJobSettings, ("hyperparameters",))
    assert "run_dir" not in found
    assert "data_dir" not in found


def test_fields_have_kind_limits_and_default() -> None:
    assert (FIELDS["nodes"].kind, FIELDS["nodes"].default) == ("integer, ≥ 1, ≤ 4096", "`1`")
    assert (FIELDS["queue"].kind, FIELDS["queue"].default) == ("name", "none")
    assert FIELDS["min_nodes"].kind == "integer or null, ≥ 1"
    assert (FIELDS["env"].kind, FIELDS["env"].default) == ("mapping to string", "empty")
    assert FIELDS["volumes"].kind == "mapping to section"
    assert FIELDS["after"].kind == "list of name"
