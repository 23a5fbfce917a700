#!/usr/bin/env bash
# Pins every requirement with == and hashes. `dev` is resolved first and constrains the others, so
# that every environment uses the same version of a package. Run this script after editing a *.in
# file.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
  uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header \
    --no-annotate "$@"
}
# uv prefers versions that the output file already has.
rm -f requirements/workload.txt
# Only dev.txt is universal: contributors use different versions of Python. The other files are for
# images with a fixed version, or list only a few packages.
compile --universal requirements/dev.in -o requirements/dev.txt
compile requirements/stack.in -c requirements/dev.txt -o requirements.txt
compile requirements/plugin.in -c requirements/dev.txt -o gpu_platform/requirements.txt
for name in devcluster workload tensorflow recorder sweeps sweep-page notebook models ray; do
  compile "requirements/$name.in" -c requirements/dev.txt -o "requirements/$name.txt"
done
for name in cpu-image diffusion hugging-face lightning vision; do
  compile --no-deps "requirements/$name.in" -c requirements/dev.txt -o "requirements/$name.txt"
done
# The base image and the test environment already have torch with its GPU packages.
compile requirements/torchtitan.in $(uv pip compile --quiet --python-version 3.11 --no-header \
  --no-annotate requirements/torchtitan.in |
  sed -nE 's/^((nvidia|cuda)-[^=]+|torch|triton|setuptools)==.*/--no-emit-package \1/p') \
  -o requirements/torchtitan.txt
cat requirements/vision.txt >>requirements/workload.txt
compile requirements/tensorflow-image.in -c requirements/tensorflow.txt \
  -o requirements/tensorflow-image.txt
rm requirements/vision.txt
compile requirements/bench.in -c requirements/dev.txt -o requirements/bench.txt
# Peers in `make bench-inference`, each in a separate environment, because their dependencies conflict.
for name in bentoml fastapi http litserve mlserver mosec; do
  compile "requirements/bench-$name.in" -o "requirements/bench-$name.txt"
done
# MLflow and W&B need a different protobuf version than Pulumi.
compile requirements/tracking.in -o requirements/tracking.txt
# Clients of the model server's protocol. Their dependencies conflict with all other requirements.
compile requirements/clients.in -o requirements/clients.txt
# Replaces one package of the test environment, which provides all others.
compile --no-deps requirements/newest-sdk.in -o requirements/newest-sdk.txt
compile requirements/schemas.in -o requirements/schemas.txt
compile requirements/uv.in -c requirements/dev.txt -o requirements/uv.txt
