"""One row of the scoreboard, and the fields that all measurement files write the same way.

Owns the row's form and the reading of common keys; what is special about a source stands in its own module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from moe_long_context.catalog.loader import model_entry
from moe_long_context.errors import MoeError
from moe_long_context.units import GIB

LONG_CONTEXT_TOKENS = 16384
GB = 1e9
"""Bridge logs gigabytes of 1e9 bytes, five significant digits (megatron/bridge/training/utils/train_utils.py)."""
MIB = 2**20

Entry = dict[str, Any]


@dataclass
class Row:
    """One published run: its configuration, what was measured, and what had to be assumed.

    `measured` holds peak_gib, static_gib, reserved_gib, saving_gib (against row `control`) and outcome (fits | oom).
    `rank` says whose peak was measured: max, first or last pipeline rank.
    """

    id: str
    source: Any
    group: str
    config: Entry = field(default_factory=dict)
    measured: Entry = field(default_factory=dict)
    unit: str = ""
    rank: str = "max"
    control: str = ""
    assumptions: list[str] = field(default_factory=list)
    skip: str = ""

    def assume(self, text: str) -> None:
        """Write down what the source does not say."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def written(self) -> Entry:
        """As plain data, empty parts left out."""
        return {name: value for name, value in vars(self).items() if value}


SIZES = {
    "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size", "mbs": "micro_batch_size",
    "gbs": "global_batch_size", "seq_len": "seq_length", "world_size": "num_gpus",
    "first_stage_layers": "num_layers_in_first_pipeline_stage",
    "last_stage_layers": "num_layers_in_last_pipeline_stage", "mtp_layers": "mtp_num_layers",
}  # fmt: skip
PRECISIONS = {
    "bf16": "bf16", "mxfp8": "mxfp8", "fp8-mx": "mxfp8", "fp8_mx": "mxfp8", "fp8 (mx)": "mxfp8", "nvfp4": "nvfp4",
    "fp8": "fp8_tensorwise", "fp8-cs": "fp8_tensorwise", "fp8-current-scaling": "fp8_tensorwise",
    "fp8-block": "fp8_blockwise", "fp8 blockwise": "fp8_blockwise", "fp8-blockwise": "fp8_blockwise",
    "fp8-ds": "fp8_delayed", "bf16 (framework default)": "bf16", "bf16_mixed": "bf16",
}  # fmt: skip
MODULES = {"up_proj": "mla_up_proj", "norm": "layernorm", "act": "moe_act"}
DECORATION = re.compile(
    r"\s*\(.*?\)|\s+(671|685)B|\s+(SFT|LoRA|dense|full|VL)\b|^[\w.-]+/|-(Instruct|Base|Thinking|Chat)\b|-2507\b|-FP8$|-it$",
    re.IGNORECASE,
)


def model_id(name: Any) -> str | None:
    """The catalog's id of a published model name; None where the catalog has no such model."""
    text = str(name or "")
    for candidate in (text, DECORATION.sub("", text).strip()):
        try:
            return model_entry(candidate).id
        except MoeError:
            continue
    return None


def gpu_name(row: Row, hardware: Any) -> str:
    """The catalog's GPU name of a published device name."""
    text = str(hardware or "")
    for known in ("GB300", "GB200", "B300", "B200", "H200", "H100", "H800", "H20", "A100", "A800"):
        if known.lower() in text.lower():
            return known
    row.assume("80 GB device (H100)" if not text else f"{text} read as H100")
    return "H100"


def put_common(row: Row, entry: Entry) -> None:
    """Sizes, precision, recompute, dispatcher, offload, graphs and layout, wherever the entry has them."""
    config = row.config
    for short, name in SIZES.items():
        if isinstance(entry.get(short), int) and not isinstance(entry.get(short), bool):
            config[name] = entry[short]
    if (entry.get("vpp") or 1) > 1:
        config["virtual_pipeline_model_parallel_size"] = entry["vpp"]
    if entry.get("pp_layout") and re.fullmatch(r"[EtmL|()*\d]+", str(entry["pp_layout"])):
        config["pipeline_model_parallel_layout"] = entry["pp_layout"]
        config.pop("virtual_pipeline_model_parallel_size", None)
    config["gpu"] = gpu_name(row, entry.get("hardware"))
    _put_precision(row, entry)
    put_recompute(config, entry.get("recompute"))
    put_dispatcher(config, entry.get("dispatcher"))
    _put_offload(row, entry)
    put_graphs(config, entry.get("cuda_graph"))
    if entry.get("ep_overlap_1f1b") or entry.get("ep_overlap"):
        config["overlap"] = {"ep_a2a": True}
    if config.get("tensor_model_parallel_size", 1) > 1:
        config["sequence_parallel"] = entry.get("sequence_parallel") is not False
    if entry.get("packed") or entry.get("sequence_packing"):
        config["data"] = {"packed": True}
    if entry.get("capacity_factor"):
        config["moe"] = {"capacity_factor": float(entry["capacity_factor"])}


def _put_precision(row: Row, entry: Entry) -> None:
    text = str(entry.get("precision") or "").strip()
    known = PRECISIONS.get(text.lower())
    if known is None:
        known = "bf16"
        row.assume("precision bf16" if not text else f"precision {text} read as bf16")
    row.config["precision"] = known


def put_recompute(config: Entry, recompute: Any) -> None:
    """`{granularity, method, num_layers, modules}` in published names."""
    r = recompute if isinstance(recompute, dict) else {}
    granularity = str(r.get("granularity") or "")
    if granularity.startswith("selective"):
        modules = r.get("modules")
        if isinstance(modules, list):
            config["recompute"] = {"granularity": "selective", "modules": [MODULES.get(m, m) for m in modules]}
        else:
            config["recompute"] = {"granularity": "selective"}
    elif granularity.startswith("full"):
        method, count = r.get("method") or "uniform", r.get("num_layers") or 1
        config["recompute"] = {"granularity": "full", "method": method, "num_layers": count}


def put_dispatcher(config: Entry, dispatcher: Any) -> None:
    """ "HybridEP", "flex hybridep, 32 SMs", "alltoall" or the recipe's own fields."""
    if isinstance(dispatcher, dict):
        flex = dispatcher.get("moe_token_dispatcher_type") == "flex"
        dispatcher = dispatcher.get("moe_flex_dispatcher_backend" if flex else "moe_token_dispatcher_type")
    text = str(dispatcher or "").lower()
    for known in ("hybridep", "deepep", "alltoall", "allgather"):
        if known in text:
            config["dispatcher"] = known
            return


def _put_offload(row: Row, entry: Entry) -> None:
    written = entry.get("offload")
    offload: Entry = written if isinstance(written, dict) else {}
    optimizer: Entry = {}
    fraction = offload.get("optimizer_cpu_fraction")
    if isinstance(fraction, int | float) and not isinstance(fraction, bool):
        optimizer["cpu_offload_fraction"] = float(fraction)
    elif offload.get("optimizer_cpu") is True:
        optimizer["cpu_offload_fraction"] = 1.0
        row.assume("the whole optimizer offloaded")
    if optimizer.get("cpu_offload_fraction") or entry.get("precision_aware_optimizer"):
        optimizer["precision_aware"] = True
    if optimizer:
        row.config.setdefault("optimizer", {}).update(optimizer)
    if isinstance(offload.get("activation_modules"), list):
        row.config["activation_offload"] = {"modules": offload["activation_modules"]}


def put_graphs(config: Entry, graph: Any) -> None:
    """`{impl, scope}` of a skill, `{implementation, scopes}` of a card, or a list of scopes."""
    if isinstance(graph, list):
        graph = {"scope": graph}
    if not isinstance(graph, dict):
        return
    scope = graph.get("scope") or graph.get("scopes") or graph.get("cuda_graph_scope") or []
    impl = graph.get("impl") or graph.get("implementation") or graph.get("cuda_graph_impl")
    impl = "transformer_engine" if impl in (None, "on") and scope else impl
    if impl in ("local", "transformer_engine", "full_iteration"):
        config["cuda_graph"] = {"impl": impl}
        if impl != "full_iteration" and isinstance(scope, list):
            config["cuda_graph"]["modules"] = scope


def need(row: Row, *names: str) -> bool:
    """Skip the row unless the configuration has these fields."""
    absent = [name for name in names if name not in row.config]
    if absent and not row.skip:
        row.skip = f"not published: {', '.join(absent)}"
    return not absent


def put_model(row: Row, name: Any) -> str | None:
    """The catalog model of a row, or a reason to skip it."""
    known = model_id(name)
    if known is None:
        row.skip = f"no catalog model for {name}"
    else:
        row.config["model"] = known
    return known


def gib_of(measured: Entry) -> tuple[float | None, str]:
    """(peak in GiB, unit note) of the peak spellings that sources use."""
    for key in ("peak_mem_gib", "peak_alloc_gib_max_over_ranks"):
        if measured.get(key):
            return float(measured[key]), "GiB"
    if measured.get("peak_mem_bytes"):
        return measured["peak_mem_bytes"] / GIB, "bytes"
    if measured.get("peak_mem_gb"):
        return measured["peak_mem_gb"] * GB / GIB, "GB of 1e9 bytes, as Bridge logs it"
    if measured.get("peak_alloc_mb"):
        return measured["peak_alloc_mb"] * MIB / GIB, "MB as printed, MiB in Megatron's log"
    return None, ""


def put_peak(row: Row, measured: Entry) -> None:
    """Peak, where one was published."""
    peak, unit = gib_of(measured)
    if peak is not None:
        row.measured["peak_gib"] = round(peak, 4)
        row.unit = unit + (", rounded" if measured.get("approx") else "")


def put_outcome(row: Row, entry: Entry) -> None:
    """`oom` where the source says so, else `fits`."""
    text = f"{entry.get('outcome') or ''} {(entry.get('measured') or {}).get('oom', '')}"
    row.measured["outcome"] = "oom" if "OOM" in text or "True" in text else "fits"
