"""Reads the lines that Megatron-LM and Megatron Bridge print: steps, memory reports, estimates, sizes, arguments.

Source: megatron-core 0.19.2 megatron/training/training.py and utils/common_utils.py (MB = 2**20 bytes),
megatron-bridge 0.6.2 training/utils/train_utils.py (GB = 1e9 bytes).
"""

from __future__ import annotations

import re

from moe_long_context.diagnosis.events import Iteration, MemoryReport
from moe_long_context.units import MIB

GB = 1e9
"""Bytes of what Bridge's memory report calls GB. Source: megatron-bridge 0.6.2 train_utils.py report_memory."""

_NUMBER = r"([-+]?(?:\d{1,18}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,3})?|nan|inf))"
_ITERATION = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*\d{1,12}\s*\|")
_FIELDS = {
    "step_time_s": re.compile(rf"elapsed time per iteration \(ms\):\s*{_NUMBER}"),
    "tflops": re.compile(rf"(?:throughput per GPU \(TFLOP/s/GPU\)|throughput \(tflops\)):\s*{_NUMBER}", re.I),
    "grad_norm": re.compile(rf"grad norm:\s*{_NUMBER}"),
    "loss": re.compile(rf"lm loss:\s*{_NUMBER}"),
}
_BRIDGE_STEP = re.compile(rf"Step Time : {_NUMBER}s GPU utilization: {_NUMBER}MODEL_TFLOP")
_REPORT = re.compile(r"\[Rank (\d{1,7})\]\s*(?:\(after (\d{1,12}) iterations?\))?[^|]{0,80}memory \((MB|GB)\)\s*\|(.*)")
_PAIR = re.compile(r"([\w -]{3,60}):\s*(\d{1,18}(?:\.\d{1,12})?(?:e[-+]?\d{1,2})?)")
_COUNTS = re.compile(r"count|retries|retires")
_THEORY = re.compile(r"(weight and optimizer|activation|total)\s*=\s*(\d{1,12}(?:\.\d{1,6})?) MB")
_WORLD = re.compile(
    r"using world size: (\d{1,7}), data-parallel size: (\d{1,7})(?:, context-parallel size:? (\d{1,7}))?"
    r".{0,120}?tensor-model-parallel size: (\d{1,7}).{0,80}?pipeline-model-parallel size: (\d{1,7})"
)
_ARGUMENT = re.compile(r"^[^\n.]{0,40}?\b([a-z][a-z0-9_]{2,60}) \.{2,} (\S[^\r\n]{0,200})$", re.M)
ARGUMENTS = {
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
    "seq_length", "micro_batch_size", "global_batch_size", "sequence_parallel", "cp_comm_type", "world_size",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "optimizer_cpu_offload",
    "moe_token_dispatcher_type", "cross_entropy_loss_fusion", "num_layers", "overlap_moe_expert_parallel_comm",
}  # fmt: skip
_SWITCHES = {"True": True, "False": False, "None": None}


def iteration_of(line: str) -> Iteration | None:
    """A training step's line."""
    match = _ITERATION.search(line)
    if not match:
        return None
    values = {name: float(m.group(1)) for name, p in _FIELDS.items() if (m := p.search(line))}
    if "step_time_s" in values:
        values["step_time_s"] /= 1000.0
    return Iteration(int(match.group(1)), **values)


def bridge_tflops_of(line: str) -> float | None:
    """The utilisation that Bridge prints on its own line, TFLOP/s/GPU."""
    match = _BRIDGE_STEP.search(line)
    return float(match.group(2)) if match else None


def report_of(line: str) -> MemoryReport | None:
    """The memory line after the first steps; sizes in bytes, counts as they are (Bridge 0.6.2 spells "retires")."""
    match = _REPORT.search(line)
    if not match:
        return None
    rank, step, unit, rest = match.groups()
    scale = MIB if unit == "MB" else GB
    values = {}
    for text, value in _PAIR.findall(rest):
        name = text.strip().replace(" ", "_")
        values[name] = float(value) * (1 if _COUNTS.search(name) else scale)
    return MemoryReport(int(rank), int(step) if step else None, values)


def theory_of(line: str) -> dict[str, float]:
    """The theoretical footprint line, bytes (MB = 2**20)."""
    return {name.replace(" ", "_"): float(value) * MIB for name, value in _THEORY.findall(line)}


def sizes_of(line: str) -> dict[str, object]:
    """World and parallel sizes of the line that Megatron-LM prints at start."""
    match = _WORLD.search(line)
    if not match:
        return {}
    world, _dp, cp, tp, pp = (int(x) if x else None for x in match.groups())
    sizes = {"num_gpus": world, "context_parallel_size": cp, "tensor_model_parallel_size": tp,
             "pipeline_model_parallel_size": pp}  # fmt: skip
    return {name: value for name, value in sizes.items() if value}


def arguments_in(text: str) -> dict[str, object]:
    """Run-configuration facts of the arguments that Megatron-LM prints at start, one a line."""
    found = {name: _value(value.strip()) for name, value in _ARGUMENT.findall(text) if name in ARGUMENTS}
    return {name: value for name, value in found.items() if value is not None}


def _value(text: str) -> object:
    if text in _SWITCHES:
        return _SWITCHES[text]
    return int(text) if text.isdigit() else text
