#!/usr/bin/env bash
# Pins every requirement with == and hashes. `dev` is resolved first and constrains the others,
# so that one version of a package is used everywhere. Run it after editing a *.in file.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
  uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header \
    --no-annotate "$@"
}
compile requirements/dev.in -o requirements/dev.txt
compile requirements/stack.in -c requirements/dev.txt -o requirements.txt
for name in devcluster workload; do
  compile "requirements/$name.in" -c requirements/dev.txt -o "requirements/$name.txt"
done
for name in cpu-image diffusion; do
  compile --no-deps "requirements/$name.in" -c requirements/dev.txt -o "requirements/$name.txt"
done
compile requirements/uv.in -c requirements/dev.txt -o requirements/uv.txt
