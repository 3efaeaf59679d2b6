#!/usr/bin/env bash
# Pins requirements/*.in to requirements/*.txt with hashes of every published file, using pip-tools in a venv of its own.
#   tests/docs/lock.sh [PYTHON]      run it with the oldest Python that is supported, 3.11
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${1:-python3.11}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet pip-tools
cd requirements
for name in runtime dev; do
  "$venv/bin/pip-compile" --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options -o "$name.txt" "$name.in"
done
