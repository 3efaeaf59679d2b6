"""Kept tensors equal those of real Megatron-Core layers, tensor by tensor, for every recompute set and layout recorded.

The golden file comes from layers of full width on a CPU (tests/oracle/part_activations.py). Tolerance: none. Tensors
that do not grow with the sequence (token counts, one scalar of an auxiliary loss, a delta net's decay constants) are
left out; each is at most CONSTANT_BYTES.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.memory.activations import layer_saved_bytes, layer_tensors

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "activations_core-0.19.2.json").read_text(encoding="utf-8"))
CASES = GOLDEN["cases"]
LENGTHS = (64, 128)
CONSTANT_BYTES = 1024
SETS = [(case, name[3:]) for case, entry in CASES.items() for name in entry["kept"] if name.startswith("64 ")]


def _recompute(label: str) -> Any:
    if label == "none":
        return None
    full = label.startswith("full ")
    return {"granularity": "full", "method": label[5:], "num_layers": 1} if full else label.split("+")


def _run(case: str, length: int, label: str = "none") -> Run:
    return resolve({**CASES[case]["run"], "seq_length": length, "recompute": _recompute(label)})


def _real(case: str, length: int, label: str) -> Counter[tuple[str, str, int]]:
    """Every storage that the real layer keeps: (dtype, shape, bytes)."""
    kept = CASES[case]["kept"]
    rows = Counter(tuple(row) for row in kept[f"{length} none"]["all"])
    if label != "none":
        changes = kept[f"{length} {label}"]
        rows.subtract(tuple(row) for row in changes["freed"])
        rows.update(tuple(row) for row in changes["added"])
    return rows


def _growing(case: str, length: int, label: str) -> list[int]:
    """Bytes of each real tensor that grows with the sequence, largest first."""
    both = [_real(case, tokens, label) for tokens in LENGTHS]
    constant = Counter({row: count for row, count in (both[0] & both[1]).items() if row[2] <= CONSTANT_BYTES})
    rows = both[LENGTHS.index(length)] - constant
    return sorted((row[2] for row in rows.elements()), reverse=True)


def _modelled(run: Run) -> list[int]:
    kind = run.arch.layer_kinds[0]
    if run.recompute_granularity == "full":
        rows = [layer_saved_bytes(run, kind).layer_input, _rotary_table(run, kind)]
    else:
        rows = [row.bytes for row in layer_tensors(run, kind, path="cpu") if row.kept(run.recompute_modules)]
    assert all(size == int(size) for size in rows)
    return sorted((int(size) for size in rows if size), reverse=True)


def _rotary_table(run: Run, kind: LayerKind) -> float:
    """What a whole-layer checkpoint of softmax or linear attention keeps of the table that all layers share, in fp32;
    MLA makes its own inside."""
    arch = run.arch
    return 0.0 if kind.attention == "mla" else run.seq_length * arch.kv_channels * arch.rotary_percent * 4


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("case", "label"), SETS, ids=[f"{case}: {label}" for case, label in SETS])
def test_tensors_equal_those_of_the_real_layer(case: str, label: str, length: int) -> None:
    """The bytes of every kept tensor are Megatron-Core 0.19.2's, at both lengths."""
    assert _modelled(_run(case, length, label)) == _growing(case, length, label)
