"""Generated parts of documentation pages: tables, and code from `examples/`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pulumi.provider.experimental.analyzer import PropertyDefinition

from gpu_platform.plugin.host import definitions
from infra.outputs import PLATFORM_OUTPUTS
from infra.settings.schema import Schema, fields, nested
from infra.settings.training.checks import LIMITED_SETTINGS
from infra.settings.training.network import NETWORK_DEFAULTS
from kube.kinds import KINDS
from kube.kinds.record import Kind
from tools.generate import rights

_TABLE: Final = re.compile(
    r"(<!-- (\w+): written by `make generate` -->\n).*?(<!-- end -->)", re.DOTALL
)
_EXAMPLE: Final = re.compile(r"(<!-- example: (\S+) -->\n```\w+\n).*?(```)", re.DOTALL)


def filled(pages: Mapping[Path, str], root: Path) -> dict[Path, str]:
    """Return the pages with updated generated parts.

    Raise ValueError unless each table is on exactly one page.
    """
    found_tables = [name for text in pages.values() for _, name, _ in _TABLE.findall(text)]
    if sorted(found_tables) != sorted(TABLES):
        raise ValueError(
            f"docs/ contains the tables {', '.join(sorted(found_tables))}, but must contain "
            f"exactly one of each: {', '.join(sorted(TABLES))}"
        )
    return {
        page: _EXAMPLE.sub(
            lambda found: found[1] + (root / found[2]).read_text() + found[3],
            _TABLE.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text),
        )
        for page, text in pages.items()
    }


def kinds_table() -> str:
    """Return the table of job kinds: objects, requirements, and behavior after a failure."""
    rows = [
        (f"`{name}`", kind.objects, _requirements(kind), kind.after_fault)
        for name, kind in KINDS.items()
    ]
    return _table(("kind", "objects", "requirements", "after a failure"), rows)


def _requirements(kind: Kind) -> str:
    return f"{kind.needs}; {kind.image_needs} in the image" if kind.image_needs else kind.needs


def capabilities_table() -> str:
    """Return a table with the settings that only some kinds support, one per row."""
    rows = [
        (
            f"{setting.title} (`{setting.key}`)",
            *("yes" if kind in setting.kinds else "no" for kind in KINDS),
        )
        for setting in LIMITED_SETTINGS
    ]
    return _table(("", *KINDS), rows)


def networks_table() -> str:
    """Return a table with the environment variables for each network."""
    rows = [
        (f"`{network}`", ", ".join(f"`{name}={value}`" for name, value in variables.items()))
        for network, variables in NETWORK_DEFAULTS.items()
    ]
    return _table(("`nccl.network`", "sets"), rows)


def outputs_table() -> str:
    """Return a table of the stack's outputs, with one row for each output and field."""
    schema = PLATFORM_OUTPUTS.json_schema()
    return _table(("output", "value", "meaning"), _outputs(schema, schema["$defs"], ""))


def _outputs(section: Schema, definitions: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    for field in fields(section):
        optional = "" if field.required else ", or absent"
        kind = field.kind.replace("section", "mapping").replace("mapping to mapping", "mapping")
        inner = [*nested(field.schema)]
        # pydantic omits the description of a field if it equals that of the section.
        common = [str(definitions[name]["description"]) for step, name in inner if not step]
        meaning = field.description or "".join(common)
        yield f"`{path}{field.name}`", f"{kind}{optional}", meaning
        for step, name in inner:
            yield from _outputs(definitions[name], definitions, f"{path}{field.name}{step}.")


def team_rights_table() -> str:
    """Return a table with the permissions of a team's members and viewers."""
    return _table(("permission", "request", *rights.GROUPS), rights.team_rows())


def pipeline_rights_table() -> str:
    """Return a table with the permissions of pipelines."""
    return _table(("permission", "request", "previews", "updates"), rights.pipeline_rows())


def attributes_table() -> str:
    """Return a table of component attributes, which have the same names in all languages."""
    rows = [
        (f"`{component}`", f"`{name}`", _value(output), str(output.description))
        for component, definition in definitions().items()
        for name, output in definition.outputs.items()
    ]
    return _table(("component", "attribute", "value", "meaning"), rows)


def _value(output: PropertyDefinition) -> str:
    if output.ref is not None:
        name = _STACK_OUTPUTS[output.ref.rpartition(":")[2]]
        return f"same as the output `{name}` of the platform's stack"
    if output.items is not None:
        return "list of string"
    return "mapping to string" if output.additional_properties else "string"


_STACK_OUTPUTS: Final = {
    "RunOutput": "runs.<key>",
    "InferenceOutput": "inference.<key>",
    "GpuNodes": "gpuNodes",
}


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "kinds": kinds_table,
    "capabilities": capabilities_table,
    "networks": networks_table,
    "outputs": outputs_table,
    "team_rights": team_rights_table,
    "pipeline_rights": pipeline_rights_table,
    "attributes": attributes_table,
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
