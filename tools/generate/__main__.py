"""`python -m tools.generate`: write all generated files; `--check` only reports stale files."""

import argparse
import sys
from pathlib import Path
from typing import Final

from devcluster.paths import CHECKOUT
from tools.generate import blocks, configuration, policies

FILES: Final = {
    "docs/configuration.md": configuration.page,
    "docs/policies.md": policies.page,
    "infra/settings/training/torchtitan.json": configuration.titan_schema,
    "gitops/config/stack.schema.json": configuration.schema_file,
}


def generated() -> dict[Path, str]:
    """Return the text of every generated file and of every page with a generated block."""
    files = {CHECKOUT / name: text() for name, text in FILES.items()}
    pages = {page: page.read_text() for page in sorted(CHECKOUT.glob("docs/*.md"))}
    return files | blocks.filled(
        {page: pages[page] for page in pages if page not in files}, CHECKOUT
    )


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is stale"
    )
    check = parser.parse_args().check
    stale = {
        path: text
        for path, text in generated().items()
        if not path.exists() or path.read_text() != text
    }
    for path, text in stale.items():
        name = path.relative_to(CHECKOUT)
        print(f"{name} is stale: run `make generate`" if check else f"wrote {name}")
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
