#!/usr/bin/env bash
# tools/make_image.sh NAME:TAG: builds the Containerfile with podman or docker, whichever is there.
set -euo pipefail
cd "$(dirname "$0")/.."

for engine in podman docker; do
  if command -v "$engine" >/dev/null; then exec "$engine" build --file Containerfile --tag "$1" .; fi
done
echo "make image needs podman or docker, and finds neither; tools/container_root.py makes the same files without them" >&2
exit 1
