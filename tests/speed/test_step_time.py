"""The step-time model: pieces by hand, directions that must hold, orders that were measured."""

from __future__ import annotations

from typing import Any

import pytest

from moe_long_context.config.resolve import resolve
from moe_long_context.speed import StepTime, facts_of, step_time
from moe_long_context.speed.collectives import distinct, ring
from moe_long_context.speed.efficiency import document, launches, of_platform, platform_of
from moe_long_context.speed.kernels import Gemm, attention, gemm, memory
from moe_long_context.tools import estimate_throughput

QWEN: dict[str, Any] = {
    "model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 64, "seq_length": 16384, "ep": 8, "gbs": 512,
    "dispatcher": "hybridep",
}  # fmt: skip
DSV3: dict[str, Any] = {
    "model": "deepseek-v3", "gpu": "GB200", "num_gpus": 256, "seq_length": 4096, "gbs": 2048, "ep": 32, "pp": 8,
    "pipeline_model_parallel_layout": "Et|(tt|)*30L", "mtp_num_layers": 0, "precision": "mxfp8",
}  # fmt: skip
SUM_REL = 1e-9
"""Parts are summed in another order than the step."""


def timed(base: dict[str, Any], **changes: Any) -> StepTime:
    """The step of a configuration with changes."""
    return step_time(resolve({**base, **changes}))


def test_the_parts_sum_to_the_step() -> None:
    """Compute, recompute, exposed communication, bubble, launches and optimizer leave nothing over."""
    step = timed(DSV3, recompute=["mla_up_proj"])
    parts = (
        step.compute_s, step.recompute_s, step.tp_s, step.ep_s, step.cp_s, step.pp_s, step.dp_s, step.bubble_s,
        step.launch_s, step.optimizer_s,
    )  # fmt: skip
    assert sum(parts) == pytest.approx(step.step_time_s, rel=SUM_REL)


def test_a_large_gemm_runs_at_the_named_efficiency() -> None:
    """2 m k n over peak * efficiency, with m/(m + half) and k/(k + half) as the only loss: 8192^3 in BF16."""
    facts = facts_of(resolve(QWEN))
    e = facts.eff
    size = 8192
    rate = facts.rates.bf16 * e.gemm_bf16 * size / (size + e.gemm_half_rows) * size / (size + e.gemm_half_depth)
    assert gemm(facts, Gemm(size, size, size)).forward == pytest.approx(2 * size**3 / rate)


def test_memory_bound_kernels_take_bytes_over_bandwidth() -> None:
    """3.35 TB/s on H100 times the named fraction."""
    facts = facts_of(resolve(QWEN))
    assert memory(facts, 3.35e12 * facts.eff.memory) == pytest.approx(1.0)


def test_attention_of_deepseek_runs_at_the_published_rate() -> None:
    """arXiv 2603.07685 Table 9, Hopper: 553 TFLOP/s forward and 422 backward at 4K, 638 and 523 at 16K (within 3 %)."""
    for length, forward, backward in ((4096, 553e12, 422e12), (16384, 638e12, 523e12)):
        facts = facts_of(resolve({**DSV3, "gpu": "H100", "precision": "bf16", "seq_length": length}))
        flops = 2 * length * length / 2 * 128 * (192 + 128)
        time = attention(facts, length / 2, 128, 192, 128)
        assert flops / time.forward == pytest.approx(forward, rel=0.03)
        assert 2.5 * flops / time.backward == pytest.approx(backward, rel=0.03)


def test_a_ring_inside_nvlink_by_hand() -> None:
    """All-gather of 8 GB over 8 ranks: 7/8 of it over 450 GB/s times the named fraction."""
    facts = facts_of(resolve(QWEN))
    assert ring(facts, 8e9, 8, 8) == pytest.approx(7e9 / (450e9 * facts.eff.nvlink_collective))


def test_ports_of_one_node_work_side_by_side() -> None:
    """16 neighbours on two nodes use eight ports a node; 16 ranks eight apart, one a node, use one."""
    facts = facts_of(resolve(QWEN))
    assert ring(facts, 1e9, 16, 128) == pytest.approx(ring(facts, 1e9, 16, 16) * min(
        8.0, facts.rates.nvlink * facts.eff.nvlink_collective / (facts.rates.nic * facts.eff.nic)
    ))  # fmt: skip


def test_distinct_destinations_by_hand() -> None:
    """Two experts over two groups fall in 1.5 distinct groups on average; one group is always one."""
    assert distinct(2, 2) == 1.5
    assert distinct(1, 8) == 1.0


def test_bubble_of_equal_stages_is_pp_minus_one_stages() -> None:
    """Four equal stages, no VPP: the pipeline fills and drains three stage times."""
    step = timed(QWEN, pp=4, num_gpus=32, vocab={"should_pad": True})
    totals = sorted(stage.total for stage in step.stages)
    assert step.bubble_s == pytest.approx(sum(totals[:3]), rel=SUM_REL)


def test_interleaving_divides_the_bubble() -> None:
    """VPP 4 leaves a quarter of the bubble."""
    assert timed(QWEN, pp=4, vpp=3).bubble_s == pytest.approx(timed(QWEN, pp=4).bubble_s / 3, rel=SUM_REL)


@pytest.mark.parametrize(
    ("slower", "faster"),
    [
        ({"gpu": "H100"}, {"gpu": "GB200"}),
        ({"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}}, {}),
        ({"recompute": ["moe"]}, {}),
        ({"recompute": ["layernorm", "moe_act"]}, {}),
        ({"optimizer": {"cpu_offload_fraction": 1.0}}, {"optimizer": {"cpu_offload_fraction": 0.5}}),
        ({"optimizer": {"cpu_offload_fraction": 0.5}}, {}),
        ({"dispatcher": "alltoall"}, {"dispatcher": "hybridep"}),
        ({"moe": {"token_imbalance": 1.5}}, {}),
        ({}, {"overlap": {"ep_a2a": True}, "cuda_graph": {"impl": "full_iteration"}}),
        ({"seq_length": 4096}, {"seq_length": 4096, "cuda_graph": {"impl": "transformer_engine", "modules": ["attn"]}}),
        ({"overlap": {"grad_reduce": False}}, {}),
        ({}, {"peft": {"type": "lora"}}),
        ({"fsdp": {"enabled": True}}, {}),
        ({"moe": {"token_imbalance": 1.5}}, {"moe": {"token_imbalance": 1.5, "capacity_factor": 1.2}}),
    ],
)
def test_direction(slower: dict[str, Any], faster: dict[str, Any]) -> None:
    """What costs time costs time."""
    assert timed(QWEN, **slower).step_time_s > timed(QWEN, **faster).step_time_s


def test_an_mla_ring_hides_inside_nvlink_and_not_across_nodes() -> None:
    """DeepSeek-V3 at 128K moves 40960 elements of k and v per token and hop: hidden on NVL72, not behind one port."""
    inside = timed(DSV3, seq_length="128k", cp=32, cp_comm_type="p2p")
    across = timed(DSV3, seq_length="128k", cp=32, cp_comm_type="p2p", gpu="B200")
    assert inside.cp_s < 0.2 * inside.step_time_s
    assert across.cp_s > 0.5 * across.step_time_s


def test_attention_share_grows_with_length() -> None:
    """At equal tokens the compute of 128K is dearer than that of 16K: the causal core grows with the square."""
    short, long = timed(QWEN), timed(QWEN, seq_length="128k", gbs=64)
    assert short.tokens == long.tokens
    assert long.compute_s > 1.5 * short.compute_s


def test_dispatcher_ladder_of_deepseek_on_gb200() -> None:
    """Megatron-LM's GB200 ladder: 830 TFLOP/s with DeepEP, 944 after the change to HybridEP."""
    graphs = {"impl": "transformer_engine", "modules": ["attn", "moe_router", "moe_preprocess"]}
    hybrid = timed(DSV3, dispatcher="hybridep", cuda_graph=graphs, recompute=["mlp", "moe_act"])
    deep = timed(DSV3, dispatcher="deepep", cuda_graph=graphs, recompute=["mlp", "moe_act"])
    assert hybrid.step_time_s < deep.step_time_s


def test_full_recompute_costs_about_a_third() -> None:
    """arXiv 2603.07685: full recompute about 33 %, fine-grained below 5 %."""
    none = timed(QWEN).step_time_s
    full = timed(QWEN, recompute={"granularity": "full", "method": "uniform", "num_layers": 1}).step_time_s
    fine = timed(QWEN, recompute=["layernorm", "moe_act"]).step_time_s
    assert 1.25 < full / none < 1.40
    assert fine / none < 1.08


def test_tp_and_cp_trade_on_nvl72() -> None:
    """Qwen3-235B at 128K on GB200 was published with TP4 CP4: not slower than TP1 CP16 or TP8 CP2."""
    base = {
        "model": "qwen3-235b-a22b", "gpu": "GB200", "num_gpus": 256, "seq_length": "128k", "ep": 32, "pp": 4, "vpp": 12,
        "account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True, "gbs": 256,
        "dispatcher": "hybridep", "sp": True, "etp": 1,
    }  # fmt: skip
    published = timed(base, tp=4, cp=4).step_time_s
    assert published <= timed(base, tp=1, cp=16, sp=False).step_time_s
    assert published <= timed(base, tp=8, cp=2).step_time_s


def test_offloaded_adam_by_hand() -> None:
    """Each offloaded parameter costs the host 1 / cpu_adam_gparams_s nanoseconds."""
    gpu, host = timed(QWEN), timed(QWEN, optimizer={"cpu_offload_fraction": 1.0})
    stage = gpu.stages[0]
    local = stage.dense_parameters / 64 + stage.expert_parameters / 8
    expected = local / (of_platform("hopper").cpu_adam_gparams_s * 1e9) + of_platform("hopper").step_overhead_s
    assert host.optimizer_s == pytest.approx(expected)


def test_every_constant_has_unit_source_and_every_platform() -> None:
    """No parameter without a unit and a source; a fitted one also has a prior and a range that holds its value."""
    data = document()
    for name, entry in data["parameters"].items():
        assert entry["unit"], name
        assert entry["source"], name
        assert set(entry["value"]) == set(data["platforms"]), name
        if entry.get("fitted"):
            low, high = entry["range"]
            assert all(low <= value <= high for value in entry["value"].values()), name
            assert set(entry["prior"]) == set(data["platforms"]), name
    assert all(count >= 0 for count in launches())


def test_every_catalog_gpu_has_a_platform() -> None:
    """Catalog ids map to a platform of the same architecture."""
    from moe_long_context.catalog.loader import gpu, gpu_ids

    listed = {x for ids in document()["platforms"].values() for x in ids}
    assert listed <= set(gpu_ids())
    for name in gpu_ids():
        assert gpu(name).architecture in platform_of(gpu(name)), name


def test_layers_that_do_not_divide_are_timed_in_a_named_split() -> None:
    """61 layers over PP 8 without a layout: the answer names the balanced split that it timed."""
    answer = estimate_throughput({**DSV3, "pipeline_model_parallel_layout": None})
    assert answer.ok
    assert any(a.startswith("pipeline_model_parallel_layout = ") for a in answer.assumptions)


def test_a_written_layout_that_has_no_meaning_is_refused() -> None:
    """A layout of 60 layers for 61 leaves nothing to time."""
    answer = estimate_throughput({**DSV3, "pipeline_model_parallel_layout": "E|(tt|)*30L"})
    assert not answer.ok
    assert answer.error is not None
    assert answer.error.code == "invalid_layout"


def test_a_mesh_that_does_not_fit_is_refused() -> None:
    """100 GPUs are no multiple of EP 8."""
    assert not estimate_throughput({**QWEN, "num_gpus": 100}).ok


def test_silence_widens_the_interval() -> None:
    """A question without dispatcher, graphs and overlap has a wider interval than one that states them."""
    stated = {
        **QWEN, "overlap": {"ep_a2a": False}, "cuda_graph": {"impl": "transformer_engine", "modules": ["moe_router"]},
    }  # fmt: skip
    silent = {key: value for key, value in QWEN.items() if key != "dispatcher"}

    def width(config: dict[str, Any]) -> float:
        result = estimate_throughput(config).result
        assert result is not None
        low, high = result.interval_tflops
        return float(high / low)

    assert width(silent) > width(stated)


def test_result_names_the_bottleneck_and_its_remedy() -> None:
    """alltoall across nodes: expert communication, and the dispatcher that attacks it."""
    result = estimate_throughput({**QWEN, "ep": 64, "dispatcher": "alltoall", "seq_length": 4096}).result
    assert result is not None
    assert result.bottleneck.name == "expert communication"
    assert "hybridep" in result.bottleneck.change
