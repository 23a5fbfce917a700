"""Custom resource definitions from the Go modules of their projects."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.platforms import unavailable


@dataclass(frozen=True)
class GoModule:
    """A version of a module and its required hash."""

    name: str
    sum: str


KEDA = GoModule(
    "github.com/kedacore/keda/v2@v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="
)
VOLCANO = GoModule("volcano.sh/volcano@v1.14.1", "h1:9eLs47iZeLgey6EcA1rHwVkU7HoBNm3UVpJZ4uhFJ7c=")
GATEWAY_API = GoModule(
    "sigs.k8s.io/gateway-api@v1.5.1", "h1:RqVRIlkhLhUO8wOHKTLnTJA6o/1un4po4/6M1nRzdd0="
)


def module_folder(module: GoModule, folder: Path) -> Path:
    """Return the read-only directory of the module; `folder` must be outside of other modules."""
    if shutil.which("go") is None:
        unavailable(f"{module.name} is built from a Go module, but Go is not installed")
    done = subprocess.run(
        ["go", "mod", "download", "-json", module.name],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    described = json.loads(done.stdout)
    assert described.get("Sum") == module.sum, described
    return Path(described["Dir"])
