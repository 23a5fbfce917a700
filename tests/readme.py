"""The shell commands of a Markdown page, block by block."""

import re
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"(?P<mark><!-- own-cluster -->\s*)?^ *```sh\n(?P<body>.*?)^ *```", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A block of commands; `own_cluster` marks those for the reader's own cluster."""

    commands: tuple[str, ...]
    own_cluster: bool
    needs: str = ""
    """Requirement in the first line, such as `# needs a real cluster on EKS`."""

    @property
    def script(self) -> str:
        return "\n".join(self.commands)


def blocks(page: Path) -> list[Block]:
    """Return all blocks marked `sh`, in order."""
    return [
        _block(found["body"], found["mark"] is not None)
        for found in BLOCK.finditer(page.read_text())
    ]


def _block(body: str, own_cluster: bool) -> Block:
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    needs = lines.pop(0).removeprefix("# ") if lines[0].startswith("# needs ") else ""
    return Block(tuple(lines), own_cluster, needs)
