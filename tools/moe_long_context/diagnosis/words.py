"""Reads what a person's sentence, English or Chinese, says about the run: model, GPUs, length, sizes, versions, memory.

A fact counts only when the sentence says it once, or always the same: "TP2 ... resumed on TP1" gives no TP. What a
sentence means is the matter of the signatures.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TypeVar

from moe_long_context.catalog.loader import alias_table, gpu, gpu_ids, model_ids
from moe_long_context.errors import BadValueError
from moe_long_context.units import GIB, parse_length

T = TypeVar("T")
SIZES = {
    "tp": "tensor_model_parallel_size", "cp": "context_parallel_size", "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size", "mbs": "micro_batch_size", "gbs": "global_batch_size",
}  # fmt: skip
_SIZE = re.compile(
    r"(?<![a-z])(tp|cp|pp|vpp|ep|etp|mbs|gbs)(?: ?size)?\s*(?:=|:|is|of|为|是)?\s*(\d{1,5})(?![\d.]|\s*k)"
)
_MICRO = re.compile(r"micro[- ]?batch(?: size)?\s*(?:=|:|is|of)?\s*(\d{1,3})(?!\d)")
_LENGTH = re.compile(
    r"(?<![\w.])(\d{1,4}(?:\.\d)?[km]|\d{4,7}(?=[ -]?(?:tokens?|seq|context|长度)))(?![a-z0-9])"
    r"(?!\s*(?:steps?|iterations?|samples?|步|vocab|gpus?|词))"
)
_VOCAB = re.compile(r"(?:vocab\w*|词表)\s*(?:size)?\s*(?:of|is|=|:|为|是)?\s*[\d,.]+\s*k?")
_NODES = re.compile(r"(?<![\w.-])(\d{1,4}|单)\s*(?:x\s*)?(?:nodes?\b|机|台|个?节点)")
MOST_GPUS_PER_NODE = 8
_CORE = re.compile(r"(?:megatron[-_ ]?core|mcore|(?<![\w-])core)\s*(?:version|版本)?\s*v?(0\.\d{1,2}(?:\.\d{1,2})?)")
_BRIDGE = re.compile(r"bridge\s*(?:version|版本)?\s*v?(0\.\d{1,2}(?:\.\d{1,2})?)")
_GIB = r"(\d{1,4}(?:\.\d{1,2})?)\s*g(?:i?b)?(?![a-z])"


def facts_told(text: str) -> dict[str, object]:
    """Run-configuration facts of a person's words; empty where nothing is said for certain."""
    text = text.lower().replace("\u00d7", "x")
    found: dict[str, object | None] = {
        "model": _model(text),
        "gpu": _gpu(text),
        "seq_length": _only(_lengths(_VOCAB.sub(" ", text))),
        **{field: _only(_sizes(text, short)) for short, field in SIZES.items()},
    }
    found["num_gpus"] = _num_gpus(text, found["gpu"])
    found["micro_batch_size"] = found["micro_batch_size"] or _only(int(n) for n in _MICRO.findall(text))
    core, bridge = _only(_CORE.findall(text)), _only(_BRIDGE.findall(text))
    if core or bridge:
        found["versions"] = {k: v for k, v in (("megatron_core", core), ("megatron_bridge", bridge)) if v}
    return {name: value for name, value in found.items() if value is not None}


def memory_told(text: str) -> dict[str, float]:
    """Bytes that a person says are allocated and reserved by PyTorch."""
    text = text.lower()
    out = {}
    for word in ("allocated", "reserved"):
        match = re.search(rf"{word}\D{{0,24}}?{_GIB}|{_GIB}\s*(?:is |are )?{word}", text)
        if match:
            out[word] = float(next(g for g in match.groups() if g)) * GIB
    return out


def _only(values: Iterable[T]) -> T | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _sizes(text: str, short: str) -> Iterator[int]:
    return (int(value) for name, value in _SIZE.findall(text) if name == short and int(value))


def _lengths(text: str) -> Iterator[int]:
    for word in _LENGTH.findall(text):
        try:
            yield parse_length(word)
        except BadValueError:
            continue


def _model(text: str) -> str | None:
    """The one catalog model that is named; the longest name wins over names inside it."""
    pattern, stems = _model_names()
    return _only([stems[re.sub(r"[-_ ]", "", match.group())] for match in pattern.finditer(text)])


@lru_cache(maxsize=1)
def _model_names() -> tuple[re.Pattern[str], dict[str, str]]:
    table = {**alias_table("models"), **{name: name for name in model_ids()}}
    longest = sorted(table, key=len, reverse=True)
    spelled = "|".join(re.escape(name).replace("\\-", "[-_ ]?") for name in longest)
    return re.compile(rf"(?<![a-z0-9.])(?:{spelled})(?![a-z0-9]|\.\d)"), {
        re.sub(r"[-_ ]", "", name): stem for name, stem in table.items()
    }


def _gpu(text: str) -> str | None:
    names = {name.lower(): name for name in gpu_ids() if name != "A100-40GB"}
    found = _only(re.findall(rf"(?:(?<![a-z0-9])|(?<=\dx))(?:{'|'.join(names)})(?![a-z0-9])", text))
    if found == "a100" and re.search(r"a100.{0,6}40 ?g", text):
        return "A100-40GB"
    return names[found] if found else None


def _num_gpus(text: str, gpu_name: object) -> int | None:
    """GPUs that are counted, or nodes times the GPUs of one."""
    counted = {int(n) * int(times or 1) for n, times in _gpu_count().findall(text)} - {0}
    nodes = _only(1 if n == "单" else int(n) for n in _NODES.findall(text))
    many = {count for count in counted if count > MOST_GPUS_PER_NODE}
    if nodes is None or many:
        return _only(many or counted)
    per_node = _only(counted) or (gpu(str(gpu_name)).gpus_per_node if gpu_name else 0)
    return nodes * per_node or None


@lru_cache(maxsize=1)
def _gpu_count() -> re.Pattern[str]:
    names = "|".join(sorted((name.lower() for name in gpu_ids()), key=len, reverse=True))
    return re.compile(
        rf"(?<![\w.-])(\d{{1,5}})(?:\s*[x*]\s*(\d{{1,2}}))?\s*[x*]?\s*(?:{names}|gpus?\b|cards?\b|张|卡|块)"
    )
