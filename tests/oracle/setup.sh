#!/usr/bin/env bash
# Makes .venv-oracle in the repository root: the released Megatron-Core and Megatron Bridge, importable on a CPU.
# The wheels ask for Python 3.12 but run on 3.11; what they cannot use without a GPU is stood in for by _env.py.
#
#   tests/oracle/setup.sh [VENV]      PYTHON=python3.11 by default; about 1 minute and 1.3 GB
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
venv=${1:-$root/.venv-oracle}
python=${PYTHON:-python3.11}
stamp="$venv/.made-by-$(sha256sum "$root/tests/oracle/setup.sh" | cut -c1-16)"
[ -f "$stamp" ] && exit 0

rm -rf "$venv"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
"${pip[@]}" torch==2.13.0 numpy==2.4.6 packaging==26.4 einops==0.8.2
"${pip[@]}" transformers==5.12.1 omegaconf==2.3.1 hydra-core==1.3.8 tqdm==4.70.1 rich==15.0.0 pyyaml==6.0.4 \
  six==1.17.0 regex==2026.11.19 tensorboard==2.21.0 pillow==13.0.0 pydantic==2.14.4 ninja==1.13.2
"${pip[@]}" --no-deps --ignore-requires-python megatron-core==0.19.2 megatron-bridge==0.6.2
touch "$stamp"
echo "oracle environment: $SECONDS s, $(du -sh "$venv" | cut -f1)"
