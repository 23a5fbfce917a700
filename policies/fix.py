"""Application of rule remediations to manifest files.

Comments and the order of fields are kept, and as few lines as possible are changed. JSON is
reformatted. A file is written only if its new text, when parsed, yields exactly the remediated
objects.
"""

from __future__ import annotations

import codecs
import copy
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from policies.configuration import Configuration
from policies.documents import Document, DocumentError, read
from policies.evaluation import applicable_rules, resource_of
from policies.views import View
from policies.violations import Edit, apply_edits

_SEPARATOR = re.compile(r"^(?=---(?:\s|$))", re.MULTILINE)
_UNLIMITED_WIDTH = 10_000


@dataclass(frozen=True)
class Fix:
    """A file with its text before and after the remediations of some rules."""

    path: Path
    before: str
    after: str
    rules: Sequence[str]

    def write(self) -> None:
        """Write the remediated text to the file."""
        self.path.write_bytes(self.after.encode())

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        lines = unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            str(self.path),
            str(self.path),
        )
        return "".join(lines)


@dataclass(frozen=True)
class _RemediatedObject:
    """An object, the edits of the remediations, and the manifest after these edits."""

    document: Document
    manifest: dict[str, Any]
    edits: list[Edit]
    rules: list[str]
    in_embedded_text: list[str]
    """Rules that would edit an object embedded in text, such as a value of a ConfigMap."""


def fixes(documents: Sequence[Document], configuration: Configuration) -> Iterator[Fix | str]:
    """Yield the files to write, and a message about each file that cannot be fixed."""
    by_source: dict[str, list[_RemediatedObject]] = {}
    for document in documents:
        by_source.setdefault(document.source, []).append(_remediate(document, configuration))
    for source, objects in by_source.items():
        if any(item.edits for item in objects):
            yield _fix(Path(source), objects)
        if unfixed := sorted({name for item in objects for name in item.in_embedded_text}):
            yield f"{source}: not fixed ({', '.join(unfixed)}): fix the embedded text by hand"


def _remediate(document: Document, configuration: Configuration) -> _RemediatedObject:
    """Apply the remediations in order, because each may depend on earlier ones."""
    changed = _RemediatedObject(document, copy.deepcopy(document.manifest), [], [], [])
    for rule, _, config in applicable_rules(configuration, whole_stack=False):
        if rule.remedy is None:
            continue
        resource = resource_of(changed.manifest, configuration.kinds)
        if configuration.exemptions.covers(rule.name, resource):
            continue
        all_edits = rule.edits(View(resource), config)
        edits = [edit for edit in all_edits if not _is_in_embedded_text(changed.manifest, edit)]
        if len(edits) < len(all_edits):
            changed.in_embedded_text.append(rule.name)
        if edits:
            apply_edits(changed.manifest, copy.deepcopy(edits))
            changed.edits.extend(edits)
            changed.rules.append(rule.name)
    return changed


def _is_in_embedded_text(manifest: Any, edit: Edit) -> bool:
    parent = manifest
    for step in edit.steps[:-1]:
        if isinstance(parent, dict):
            parent = parent.get(step)
        elif isinstance(parent, list) and isinstance(step, int) and step < len(parent):
            parent = parent[step]
        else:
            break
    return isinstance(parent, str)


def _decoded(data: bytes) -> str:
    """Decode a file as UTF-16 if it starts with a UTF-16 byte order mark, otherwise as UTF-8."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf16 else "utf-8-sig")


def _fix(path: Path, objects: Sequence[_RemediatedObject]) -> Fix | str:
    before = _decoded(path.read_bytes())
    expected = [item.manifest for item in objects]
    rules = sorted({name for item in objects for name in item.rules})
    for edit in (_edit_changed_lines, _rewrite_documents):
        try:
            after = edit(before, objects)
            if [document.manifest for document in read(str(path), after, _skip)] == expected:
                return Fix(path, before, after, rules)
        except (DocumentError, YAMLError, LookupError, TypeError, AttributeError):
            continue
    fixed = ", ".join(rules)
    return f"{path}: not fixed ({fixed}): fix it by hand (YAML anchors may be the cause)"


def _skip(_: str) -> None:
    """Ignore documents that are not objects."""


def _edit_changed_lines(text: str, objects: Sequence[_RemediatedObject]) -> str:
    """Return the remediated text, with as few changed lines as possible."""
    return _edit_text(text, objects, keep=True)


def _rewrite_documents(text: str, objects: Sequence[_RemediatedObject]) -> str:
    """Return the remediated text, with every changed document rewritten."""
    return _edit_text(text, objects, keep=False)


def _edit_text(text: str, objects: Sequence[_RemediatedObject], *, keep: bool) -> str:
    line, result = 1, []
    for part in _SEPARATOR.split(text):
        end = line + part.count("\n")
        lines = range(line, end if part.endswith("\n") else end + 1)
        within = [item for item in objects if item.edits and item.document.line() in lines]
        result.append(_edit_part(part, within, keep) if within else part)
        line = end
    return "".join(result)


def _edit_part(part: str, objects: Sequence[_RemediatedObject], keep: bool) -> str:
    """Return a document's text with the edits applied. With `keep`, keep unchanged lines."""
    if part.lstrip().startswith("{"):
        try:
            value = json.loads(part)
        except ValueError:
            pass  # YAML in flow style.
        else:
            _apply(value, objects)
            return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    newline = "\r\n" if "\r\n" in part else "\n"
    text = part.replace("\r\n", "\n")
    style = _round_trip(text, objects[0].document.node)
    value = style.load(text)
    before = _dump(style, value)
    _apply(value, objects)
    after = _dump(style, value)
    lines = _transfer_changes(text.removesuffix("\n").split("\n"), before, after) if keep else after
    return "".join(f"{line}{newline}" for line in lines)


def _round_trip(text: str, node: Any) -> YAML:
    """Return a YAML reader and writer that keeps quotes and uses the indentation of `node`."""
    style = YAML()
    style.preserve_quotes = True
    style.width = _UNLIMITED_WIDTH
    style.explicit_start = text.startswith("---")
    indents = dict(reversed(list(_indents(node))))
    mapping, (sequence, offset) = indents.get("mapping", 2), indents.get("sequence", (2, 0))
    style.indent(mapping=mapping, sequence=sequence, offset=offset)
    return style


def _indents(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the indentation of the block collections in an object."""
    if isinstance(node, yaml.MappingNode) and not node.flow_style:
        for key, value in node.value:
            at = key.start_mark.column
            if isinstance(value, yaml.CollectionNode) and not value.flow_style and value.value:
                start = value.start_mark.column
                if isinstance(value, yaml.MappingNode):
                    yield "mapping", start - at
                elif (item := value.value[0].start_mark.column) > start:
                    yield "sequence", (item - at, start - at)
            yield from _indents(value)
    elif isinstance(node, yaml.SequenceNode) and not node.flow_style:
        for item in node.value:
            yield from _indents(item)


def _dump(style: YAML, value: Any) -> list[str]:
    stream = io.StringIO()
    style.dump(value, stream)
    return stream.getvalue().removesuffix("\n").split("\n")


def _apply(value: Any, objects: Sequence[_RemediatedObject]) -> None:
    for item in objects:
        target = value
        for step in item.document.base:
            target = target[step]
        apply_edits(target, copy.deepcopy(item.edits))


def _transfer_changes(original: list[str], before: list[str], after: list[str]) -> list[str]:
    """Return the original lines with the changes from `before` to `after`.

    Raise `LookupError` if the changed lines are not contiguous in the original.
    """
    positions = {len(before): len(original)}
    for _, i1, i2, j1, j2 in SequenceMatcher(None, before, original, False).get_opcodes():
        if i2 - i1 == j2 - j1:
            positions |= zip(range(i1, i2), range(j1, j2), strict=True)
    result = list(original)
    for tag, i1, i2, j1, j2 in reversed(SequenceMatcher(None, before, after, False).get_opcodes()):
        if tag == "equal":
            continue
        start = positions[i1]
        if i2 > i1 and positions[i2 - 1] - start != i2 - 1 - i1:
            raise LookupError(f"lines {i1} to {i2} are not contiguous")
        # A document may indent some lists more than others, whereas `before` is uniform.
        shifts = {
            _level(before[i]): _level(original[positions[i]])[0] - _level(before[i])[0]
            for i in range(i2)
            if i in positions and before[i]
        }
        result[start : start + i2 - i1] = _shifted(after[j1:j2], shifts)
    return result


def _level(line: str) -> tuple[int, bool]:
    """Return the indentation of a line, and whether it starts an item of a list."""
    text = line.lstrip(" ")
    return len(line) - len(text), text.startswith("- ")


def _shifted(lines: Iterable[str], shifts: dict[tuple[int, bool], int]) -> list[str]:
    """Return lines with an adjusted indentation.

    If a line is indented more than the previous line, both are shifted by the same amount. Any
    other line is shifted by the same amount as the last line at its level. `shifts` contains the
    amounts for the levels of earlier lines.
    """
    result: list[str] = []
    last, shift = None, 0
    for line in lines:
        level = _level(line)
        if last is None or level[0] <= last:
            shift = shifts.get(level, 0)
        last, shifts[level] = level[0], shift
        result.append(" " * (level[0] + shift) + line.lstrip(" "))
    return result
