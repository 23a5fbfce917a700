"""An example of a rule, and builders of examples with one container."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True)
class Example:
    """A bad and a good example in YAML."""

    bad: str
    good: str


def example(bad: str, good: str) -> Example:
    """Return an example from indented texts."""
    return Example(dedent(bad).strip("\n"), dedent(good).strip("\n"))


def with_limits(bad: str, good: str) -> Example:
    """Return pods whose only container has these resources."""
    frame = "containers:\n  - name: main\n    resources: {text}"
    return Example(frame.format(text=bad), frame.format(text=good))


def with_context(bad: str, good: str) -> Example:
    """Return pods whose only container has these security contexts."""
    frame = "containers:\n  - name: main\n    securityContext: {text}"
    return Example(frame.format(text=bad), frame.format(text=good))


def with_image(bad: str, good: str) -> Example:
    """Return pods whose only container has these images."""
    frame = "containers:\n  - name: main\n    image: {text}"
    return Example(frame.format(text=bad), frame.format(text=good))
