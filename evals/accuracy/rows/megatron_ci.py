"""Megatron-LM's CI golden values: bytes allocated after a step and at the peak, of the last rank."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from moe_long_context.config.reading import read_document
from moe_long_context.units import GIB
from moe_long_context.yaml_safe import load_file
from rows.common import Entry, Row, gpu_name

ARGUMENTS = Path(__file__).resolve().parents[1] / "ci_arguments.yaml"
GPT2_VOCABULARY = 50257
SIZES = {
    "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size", "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size", "etp": "expert-tensor-parallel-size", "seq_len": "seq-length",
    "mbs": "micro-batch-size", "gbs": "global-batch-size",
}  # fmt: skip


@lru_cache(maxsize=1)
def known_arguments() -> dict[str, Entry]:
    """Case name -> the arguments of its model_config.yaml that decide memory."""
    return dict(load_file(ARGUMENTS))


def read(entry: Entry, row: Row) -> None:
    """One golden file."""
    row.group, row.rank, row.unit = "mcore_golden", "last", "bytes"
    case = str((entry.get("source") or {}).get("config_path", "")).split("/")[-2:][0]
    extra = dict(known_arguments().get(case, {}))
    release = extra.pop("test_type", "") == "release" or "release" in case
    if case not in known_arguments():
        row.assume("no gradient accumulation fusion and the GPT-2 vocabulary, as in all other cases")
        extra = {"no-gradient-accumulation-fusion": True}
    words = arguments(entry, extra)
    if "vocab-size" not in words and "padded-vocab-size" not in words:
        words["vocab-size"] = GPT2_VOCABULARY
        row.assume(f"vocabulary {GPT2_VOCABULARY}: the case's tokenizer is not public")
    pattern, depths = _hybrid_pattern(words)
    config = read_document(_script(words), f"{case}.sh").written()
    config.pop("reader_notes", None)
    config["env"] = {**(config.get("env") or {}), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    row.config = config
    _attention(row, entry, words)
    _hybrid(row, pattern, depths)
    _hardware(row, entry, case, release)
    _measured(row, entry, case, words)


def arguments(entry: Entry, extra: Entry) -> Entry:
    """All flags of the run: sizes, architecture and memory arguments of the row, then what the case file adds."""
    words: Entry = {"bf16": True}
    for short, flag in SIZES.items():
        if entry.get(short):
            words[flag] = entry[short]
    words |= {**extra, **(entry.get("arch_args") or {}), **(entry.get("memory_relevant_args") or {})}
    for flag in ("tokenizer-type", "tokenizer-model", "transformer-impl", "fp16"):
        words.pop(flag, None)
    if "ffn-hidden-size" not in words:
        h = int(words.get("hidden-size", 0))
        words["ffn-hidden-size"] = int(h * 4 * 2 / 3) // 64 * 64 if words.get("swiglu") else 4 * h
    words.setdefault("moe-ffn-hidden-size", words["ffn-hidden-size"])
    words.setdefault("position-embedding-type", "learned_absolute")
    words.setdefault("kv-channels", int(words["hidden-size"]) // int(words["num-attention-heads"]))
    words.setdefault("num-query-groups", words["num-attention-heads"])
    return words


def _script(words: Entry) -> str:
    return "torchrun pretrain_gpt.py " + " ".join(
        f"--{flag}" if value is True else f"--{flag} {_text(value)}"
        for flag, value in words.items()
        if value is not None and value is not False
    )


def _text(value: Any) -> str:
    text = str(value)
    if text.startswith("[") and text.endswith("]"):
        return text[1:-1].replace(",", " ")
    return f"'{text}'" if any(c in text for c in "()|*[] ") else text


def _attention(row: Row, entry: Entry, words: Entry) -> None:
    """The image with long-term support has no deterministic kernel with dropout: attention builds its scores there."""
    dropout = float(words.get("attention-dropout", 0.1))
    chosen = words.get("attention-backend")
    if "_lts" in str(entry.get("id")) and words.get("deterministic-mode") and dropout and not chosen:
        row.config["attention_backend"] = "unfused"
        row.assume(
            "attention unfused: no deterministic kernel with dropout in this image's Transformer Engine "
            "(get_attention_backend); the same case takes the bytes of the scores less in the other image"
        )


def _hybrid_pattern(words: Entry) -> tuple[str, int]:
    """(main pattern, MTP depths) of a hybrid model; `/` separates the patterns of the MTP depths."""
    text = words.pop("hybrid-layer-pattern", None) or words.pop("hybrid-override-pattern", None) or ""
    main, *depths = str(text).replace("|", "").split("/")
    return main, len(depths)


def _hybrid(row: Row, pattern: str, depths: int) -> None:
    if not pattern:
        return
    model = row.config.get("model")
    target: Entry = model if isinstance(model, dict) else row.config.setdefault("megatron", {})
    prefix = "" if target is model else "model."
    target[prefix + "hybrid_layer_pattern"] = pattern
    target[prefix + "num_layers"] = len(pattern)
    if depths:
        target[prefix + "mtp_hybrid_override_pattern"] = "*E"


def _hardware(row: Row, entry: Entry, case: str, release: bool) -> None:
    row.config["gpu"] = gpu_name(row, entry.get("hardware") or "H100")
    if entry.get("world_size"):
        row.config["num_gpus"] = entry["world_size"]
        return
    if release:
        row.skip = "the node count of release tests is not public, so the optimizer's shards are unknown"
        return
    row.config["num_gpus"] = 4 if "1node" in case and "GB200" in row.config["gpu"] else 8
    row.assume(f"{row.config['num_gpus']} GPUs: the platform's size in tests/test_utils/recipes")


def _measured(row: Row, entry: Entry, case: str, words: Entry) -> None:
    measured = entry.get("measured") or {}
    if measured.get("peak_mem_bytes"):
        row.measured["peak_gib"] = round(measured["peak_mem_bytes"] / GIB, 5)
    static = measured.get("allocated_after_step_bytes_max")
    if static:
        row.measured["static_gib"] = round(static / GIB, 5)
    row.measured["outcome"] = "fits"
    memory = entry.get("memory_relevant_args") or {}
    if "flextron" in case:
        row.skip = "an elastic (Flextron) model with its own router and sliced layers"
    elif str(memory.get("fp16") or "") == "True":
        row.skip = "fp16 with loss scaling is no precision of a run configuration"
    elif memory.get("transformer-impl") == "local":
        row.assume("transformer-impl local: unfused layers of Megatron-Core in place of Transformer Engine's")
