"""Granian's types, which it does not export in a way that mypy follows."""

from granian.rsgi import HTTPProtocol as HTTPProtocol  # type: ignore[attr-defined]
from granian.rsgi import ProtocolClosed as ProtocolClosed  # type: ignore[attr-defined]
from granian.rsgi import ProtocolError as ProtocolError  # type: ignore[attr-defined]
from granian.rsgi import Scope as Scope
