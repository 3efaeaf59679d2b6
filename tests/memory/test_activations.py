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
from moe_long_context.memory.activations import (
    layer_saved_bytes,
    layer_tensors,
    mtp_saved_bytes,
    postprocess_saved_bytes,
)
from moe_long_context.memory.activations.cpu import DIFFERENCES
from moe_long_context.memory.activations.facts import facts_of

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "activations_core-0.19.2.json").read_text(encoding="utf-8"))
CASES = GOLDEN["cases"]
LENGTHS = (64, 128)
CONSTANT_BYTES = 1024
ENDS = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 1, "num_layers": 1, "mbs": 1, "gbs": 1, "moe_layer_freq": [0],
    "dispatcher": "alltoall", "num_moe_experts": 16, "seq_length": 64, "mtp": 0,
}  # fmt: skip
"""The run of the golden file's "ends"."""
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
    MLA makes its own inside, and a model without rotary embedding has none."""
    arch = run.arch
    has_none = kind.attention == "mla" or arch.position_embedding_type == "none"
    return 0.0 if has_none else run.seq_length * arch.kv_channels * arch.rotary_percent * 4


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("case", "label"), SETS, ids=[f"{case}: {label}" for case, label in SETS])
def test_tensors_equal_those_of_the_real_layer(case: str, label: str, length: int) -> None:
    """The bytes of every kept tensor are Megatron-Core 0.19.2's, at both lengths."""
    assert _modelled(_run(case, length, label)) == _growing(case, length, label)


def _ends(name: str) -> Counter[int]:
    return Counter(size for _, _, size in GOLDEN["ends"][name])


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_mtp_and_head_keep_what_the_real_model_keeps(recompute: str) -> None:
    """Hidden-sized tensors that the final norm, the head and one MTP depth add; logits belong to the loss."""
    run = resolve({**ENDS, "recompute": _recompute("full uniform" if recompute == "full" else "none")})
    layer = Counter(_modelled(run))
    hidden = int(layer_saved_bytes(run, run.arch.layer_kinds[0]).layer_input)
    without, mtp = _ends(f"mtp 0, {recompute}"), _ends(f"mtp 1, {recompute}")

    def large(rows: Counter[int]) -> int:
        return sum(size * count for size, count in rows.items() if size >= hidden)

    assert large(without - layer) == postprocess_saved_bytes(run)
    assert large(mtp - without - layer) == mtp_saved_bytes(run)


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b", "llama3-8b"])
def test_paths_differ_in_the_named_rows_only(model: str) -> None:
    """A row that is in one path's table and not in the other's belongs to a documented difference."""
    run = resolve({"model": model, "gpu": "H100", "num_gpus": 1, "seq_length": 128, "gbs": 1, "mbs": 1})
    for kind in set(run.arch.layer_kinds):
        te, cpu = set(layer_tensors(run, kind)), set(layer_tensors(run, kind, path="cpu"))
        x = facts_of(run)
        known = [d for d in DIFFERENCES if d.layer in (kind.attention, kind.ffn)]
        assert {row.name for row in te - cpu} <= {name for d in known for name in d.replaces}
        assert {row.name for row in cpu - te} <= {row.name for d in known for row in d.rows(x)}


@pytest.mark.parametrize(
    ("precision", "bytes_per_element"),
    [
        ("bf16", 2),
        ("fp8_tensorwise", 1),
        ("fp8_blockwise", 1 + 4 / 128),
        ("mxfp8", 1 + 1 / 32),
        ("nvfp4", 0.5 + 1 / 16),
    ],
)
def test_expert_inputs_are_kept_in_the_linears_dtype(precision: str, bytes_per_element: float) -> None:
    """One column-wise copy with its scales: TransformerEngine grouped_linear.py drops the row-wise data."""
    run = resolve(
        {"model": "qwen3-30b-a3b", "gpu": "B200", "num_gpus": 1, "seq_length": 128, "precision": precision, "gbs": 1}
    )
    rows = {row.name: row.bytes for row in layer_tensors(run, run.arch.layer_kinds[0])}
    assert rows["expert fc1 input"] == 128 * 8 * 2048 * bytes_per_element
    assert rows["expert fc1 output"] == 128 * 8 * 768 * 2 * 2


def test_attention_projection_keeps_no_quantized_copy_of_its_input() -> None:
    """Megatron-Core lets linear_proj keep the bf16 attention output that attention keeps anyway, except delayed FP8."""
    names = {}
    for precision in ("mxfp8", "fp8_delayed"):
        run = resolve(
            {"model": "qwen3-30b-a3b", "gpu": "B200", "num_gpus": 1, "seq_length": 64, "precision": precision, "gbs": 1}
        )
        names[precision] = {row.name for row in layer_tensors(run, run.arch.layer_kinds[0])}
    assert names["fp8_delayed"] - names["mxfp8"] == {"attention output, quantized"}


@pytest.mark.parametrize(
    ("comm", "engine", "outputs"),
    [("p2p", "2.14.0", 1), ("a2a", "2.16.0", 2), ("all_gather", "2.14.1", 2), ("all_gather", "2.15.0", 1)],
)
def test_context_parallel_attention_keeps_its_output_once_or_twice(comm: str, engine: str, outputs: int) -> None:
    """All-gather kept each step's output beside the joined one up to TransformerEngine 2.14, a2a always does."""
    config = {"model": "llama3-8b", "gpu": "H100", "num_gpus": 2, "cp": 2, "seq_length": 128, "gbs": 1, "mbs": 1}
    run = resolve({**config, "cp_comm_type": comm, "versions": {"transformer_engine": engine}})
    sizes = [row.bytes for row in layer_tensors(run, run.arch.layer_kinds[0]) if row.name.startswith("attention out")]
    assert sizes == [64 * 32 * 128 * 2] * outputs


def test_offloaded_rows_leave_the_gpu() -> None:
    """Offloading the attention core moves q, k, v and the log-sum-exp, and they come back for backward."""
    config = {"model": "llama3-8b", "gpu": "H100", "num_gpus": 1, "seq_length": 128, "gbs": 1, "mbs": 1}
    run = resolve({**config, "activation_offload": {"modules": ["core_attn"]}})
    kind = run.arch.layer_kinds[0]
    saved, plain = layer_saved_bytes(run, kind), layer_saved_bytes(resolve(config), kind)
    moved = 128 * ((32 + 8 + 8) * 128 * 2 + 32 * 4)
    assert plain.kept - saved.kept == moved == saved.rematerialised


EAGER = {
    "model": "mixtral-8x7b", "gpu": "H100", "num_gpus": 8, "tp": 2, "ep": 4, "etp": 1, "seq_length": 1024, "mbs": 2,
    "gbs": 8, "attention_backend": "unfused",
}  # fmt: skip
SCORES = 2 * (32 // 2) * 1024 * 1024
"""Elements of [b, n / TP, S, S]."""


def _named(run: Run) -> dict[str, float]:
    return {row.name: row.bytes for row in layer_tensors(run, run.arch.layer_kinds[0])}


def test_unfused_attention_keeps_its_probabilities_and_keys_of_every_head() -> None:
    """TransformerEngine backends.py UnfusedDotProductAttention: softmax output in bf16, k and v repeated per head."""
    rows = _named(resolve(EAGER))
    assert rows["attention probabilities"] == SCORES * 2
    assert rows["key of each head"] == rows["value of each head"] == rows["query"]
    assert "log-sum-exp" not in rows and "attention dropout mask" not in rows


def test_attention_dropout_keeps_its_mask_and_what_it_dropped() -> None:
    """torch native_dropout keeps a bool mask; bmm keeps its input: 5 bytes a score instead of 2."""
    rows = _named(resolve({**EAGER, "megatron": {"model.attention_dropout": 0.1}}))
    assert rows["attention dropout mask"] == SCORES
    assert rows["attention probabilities after dropout"] == SCORES * 2


@pytest.mark.parametrize("how", [{"attention_backend": "local"}, {"megatron": {"model.transformer_impl": "local"}},
                                 {"env": {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0"}}])  # fmt: skip
def test_every_way_to_switch_the_kernels_off_builds_the_scores(how: dict[str, Any]) -> None:
    assert "attention probabilities" in _named(resolve({**EAGER, "attention_backend": None, **how}))


def test_hidden_dropout_keeps_a_mask_before_each_residual() -> None:
    """One byte for each element of [s, h], twice a layer (megatron-core fusions/fused_bias_dropout.py)."""
    plain, dropped = (resolve({**EAGER, "megatron": {"model.hidden_dropout": p}}) for p in (0.0, 0.1))
    kind = plain.arch.layer_kinds[0]
    added = layer_saved_bytes(dropped, kind).kept - layer_saved_bytes(plain, kind).kept
    assert added == 2 * (2 * 1024 // 2) * 4096
