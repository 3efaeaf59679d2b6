#!/usr/bin/env bash
# The main job in three commands: plan DeepSeek-V3 at 128K on 256 H100, check the best plan, emit its recipe.
#   BIN=.venv/bin OUT=build/demo tests/docs/demo.sh
set -euo pipefail
bin=${BIN:-.venv/bin}
out=${OUT:-build/demo}
moe=$bin/moe-long-context
question=(--model deepseek-v3 --gpus 256xH100 --seq-len 128k --precision fp8_blockwise)
mkdir -p "$out"

say() { printf '\n$ %s\n' "$*"; }

say moe-long-context plan "${question[@]}"
"$moe" plan "${question[@]}" --json > "$out/plan.json" &
"$moe" plan "${question[@]}"
wait $!
"$bin/python" - "$out" <<'PY'
import json, pathlib, sys, yaml
out = pathlib.Path(sys.argv[1])
best = json.loads((out / "plan.json").read_text())["result"]["plans"][0]["config"]
(out / "best.yaml").write_text(yaml.safe_dump(best, sort_keys=False))
PY

say moe-long-context validate --config "$out/best.yaml"
"$moe" validate --config "$out/best.yaml"

say moe-long-context recipe --config "$out/best.yaml" --format bridge-python -o "$out/recipe" --force
"$moe" recipe --config "$out/best.yaml" --format bridge-python -o "$out/recipe" --force
