"""Reads PyTorch's out-of-memory texts, from 1.x to 2.9, and the allocator failures of CUDA, cuBLAS and NCCL.

Source: pytorch c10/cuda/CUDACachingAllocator.cpp. 1.x to 2.0 put the figures in brackets after the request; 2.1 wrote
sentences (with "capacty"); 2.2 fixed the word and added "Including non-PyTorch memory"; 2.3 added private pools.
"""

from __future__ import annotations

import re

from moe_long_context.units import GIB, KIB, MIB

_UNIT = {"bytes": 1, "byte": 1, "b": 1, "kib": KIB, "kb": KIB, "mib": MIB, "mb": MIB, "gib": GIB, "gb": GIB,
         "tib": GIB * KIB}  # fmt: skip
_SIZE = r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?i?B|bytes?)"
_FIELDS = {
    "requested": rf"[Tt]ried to allocate {_SIZE}",
    "capacity": rf"total capac(?:i)?ty of {_SIZE}|{_SIZE} total capacity",
    "free": rf"of which {_SIZE} is free|{_SIZE} free[;)]",
    "allocated": rf"Of the allocated memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated|"
    rf"{_SIZE} is allocated by PyTorch",
    "reserved_unallocated": rf"{_SIZE} is reserved by PyTorch but unallocated",
    "reserved": rf"{_SIZE} reserved in total by PyTorch",
    "private_pools": rf"with {_SIZE} allocated in private pools",
    "process": rf"this process has {_SIZE} memory in use",
}
_PATTERNS = {name: re.compile(text) for name, text in _FIELDS.items()}
_OTHER = re.compile(rf"Process \d+ has {_SIZE} memory in use")
IS_OOM = re.compile(
    r"CUDA out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|"
    r"CUDA error: out of memory|CUDA driver error: out of memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|HIP out of memory|Failed to CUDA (?:calloc|malloc)|"
    r"CUDNN_STATUS_ALLOC_FAILED|Cuda failure \S{0,8} ?'?out of memory"
)


def size_bytes(number: str, unit: str) -> float:
    """("1.5", "GiB") -> bytes. PyTorch prints binary units; older texts write GB for the same."""
    return float(number) * _UNIT[unit.lower()]


def oom_figures(text: str) -> dict[str, float]:
    """Every figure of an out-of-memory text, in bytes; only what is stated."""
    out = {}
    for name, pattern in _PATTERNS.items():
        match = pattern.search(text)
        if match:
            number, unit = (g for g in match.groups() if g is not None)
            out[name] = size_bytes(number, unit)
    others = sum(size_bytes(*match.groups()) for match in _OTHER.finditer(text))
    if others:
        out["other_processes"] = others
    if "reserved" in out:
        reserved = out.pop("reserved")
        out.setdefault("reserved_unallocated", max(reserved - out.get("allocated", reserved), 0.0))
    return out
