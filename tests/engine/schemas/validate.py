"""Validation of manifests against the strict schemas of Kubernetes releases.

`validate.py MANIFESTS.json VERSION...` prints the violations as a JSON list, and exits with an
error if a release or a built-in kind has no schema.
"""

import functools
import json
import sys
from pathlib import Path

from kubernetes_validate import ValidationError, utils


def main(path: str, *versions: str) -> None:
    if missing := set(versions) - set(map(utils.major_minor, utils.all_versions())):
        raise SystemExit(f"no schemas of Kubernetes {', '.join(sorted(missing))}")
    # The validator reads all definitions of a release for each manifest.
    utils.schema_contents = functools.cache(utils.schema_contents)
    found = []
    for name, manifest in json.loads(Path(path).read_text()).items():
        for version in versions:
            try:
                utils.validate(manifest, version, strict=True)
            except ValidationError as error:
                found.append(f"{name}: Kubernetes {version}: {error.json_path}: {error.message}")
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
