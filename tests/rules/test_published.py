"""Published working runs (the evidence of this package) give no error.

A row prints only a part of its configuration. What it leaves out is completed here where the run cannot have worked
otherwise; rows that the framework would refuse as printed are listed with the reason: a change is a visible diff.
"""

from typing import Any

import pytest

from moe_long_context.catalog.loader import model_ids
from moe_long_context.config.resolve import resolve
from moe_long_context.evidence.store import PublishedRun, published_runs
from moe_long_context.rules.registry import check

REFUSED_AS_PRINTED = {
    "skill_lc_qwen3_235b_gb200_4k": ("weights-exceed-memory", "prints no parallel sizes"),
    "skill_hw_qwen35_397b_gb200_128": ("layers-div-vpp", "prints PP4 VPP4 for 60 layers; recipe later corrected"),
    "skill_cg_qwen3_30b_te": ("cg-dropless-whole-layer", "prints the graph implementation without its modules"),
    "skill_vlm_235b_3d_gb200": ("recompute-full-graph", "prints full recompute beside a captured module"),
    "mvc_glm5_2_pretrain_h100": ("layers-div-pp", "VPP and layout are the named recipe's, not printed"),
    "mvc_glm5_2_sft_h100": ("vpp-microbatch-group", "VPP is the named recipe's, not printed"),
    "p2603_dsv3_gb200_256_mxfp8": ("opt-offload-fp8-param", "no fp8_param_gather printed; the default bars offload"),
    "swift_seq_cls_full": ("offline-packing-mbs1", "packs in its own data path, which takes micro batches of 2"),
    "thr_pr6429_B": ("ep-overlap-recompute-full", "measured on the branch that lifts the rule"),
}


def completed(row: PublishedRun) -> dict[str, Any]:
    """The row's configuration with what a working run must have had beside it."""
    config = dict(row.config)
    if row.model in model_ids():
        config["model"] = row.model
    if row.source.get("repo") == "NVIDIA/Megatron-LM":
        config["frontend"] = "megatron_lm"
        config["env"] = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        config.setdefault("sequence_parallel", config.get("tensor_model_parallel_size", 1) > 1)
        config["optimizer"] = {"distributed": True, **config.get("optimizer", {})}
    layout = config.get("pipeline_model_parallel_layout")
    if isinstance(layout, str) and "m" not in layout and "mtp_num_layers" not in config:
        config["mtp_num_layers"] = 0
    recompute = config.get("recompute") or {}
    if recompute.get("granularity") == "full":
        config["recompute"] = {"method": "uniform", "num_layers": 1, **recompute}
    if config.get("activation_offload"):
        config["env"] = {**config.get("env", {}), "NVTE_CPU_OFFLOAD_V1": "1"}
    return config


WORKED = [row for row in published_runs() if row.kind in ("memory", "throughput")]
RUNS = [row for row in WORKED if "not Megatron" not in row.framework]


def errors(row: PublishedRun) -> set[str]:
    found = check(resolve(completed(row), partial=True))
    return {finding.rule for finding in found if finding.severity == "error"}


def test_all_rows_are_judged() -> None:
    """At least 500 published Megatron runs take part, and every listed exception is one of them."""
    assert len(RUNS) >= 500 and {row.id for row in RUNS} >= set(REFUSED_AS_PRINTED)


def test_no_error_on_what_worked() -> None:
    """No finding of severity error on any published run that is not listed."""
    assert {row.id: found for row in RUNS if row.id not in REFUSED_AS_PRINTED and (found := errors(row))} == {}


@pytest.mark.parametrize("name", REFUSED_AS_PRINTED)
def test_what_is_refused_as_printed(name: str) -> None:
    """The row as printed breaks the named rule: the source leaves out, or contradicts, what made it run."""
    row = next(row for row in RUNS if row.id == name)
    assert REFUSED_AS_PRINTED[name][0] in errors(row)
