"""Fixes of pipeline layouts and of sizes that do not divide; registered like those of `remedy`."""

from __future__ import annotations

from collections.abc import Iterator

from moe_long_context.config.resolve import Run
from moe_long_context.diagnosis.remedy import Change, _clear_layout, even_layout, remedy
from moe_long_context.memory.estimate import estimate
from moe_long_context.units import MIB


@remedy("num_layers_in_first_last_stage", "a slightly uneven pipeline", "num_layers_in_last_pipeline_stage",
        "first_plus_last_must_equal_layers")  # fmt: skip
def _uneven_last(run: Run) -> Iterator[Change]:
    """The last stage takes fewer layers, the others share the rest evenly and in multiples of VPP."""
    layers, pp, vpp = run.arch.num_layers, run.sizes.pp, run.sizes.vpp
    if pp < 2:
        return
    middle = -(-layers // pp)
    while middle % vpp:
        middle += 1
    last = layers - middle * (pp - 1)
    if last > 0 and last % vpp == 0:
        yield _clear_layout(run, pp) | {
            "pipeline_model_parallel_layout": None, "num_layers_in_last_pipeline_stage": last,
            "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        }  # fmt: skip
    first = layers - (layers // pp) * (pp - 1)
    if first % vpp == 0 and (layers // pp) % vpp == 0:
        yield _clear_layout(run, pp) | {
            "pipeline_model_parallel_layout": None, "num_layers_in_first_pipeline_stage": first,
            "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        }  # fmt: skip


@remedy("pipeline_layout_string", "none: says layer by layer what each stage holds")
def _layout_string(run: Run) -> Iterator[Change]:
    pp, vpp = run.sizes.pp, run.vpp_written or 1
    if pp > 1:
        layout = even_layout(run.arch.num_layers, pp * vpp, run.mtp)
        yield _clear_layout(run, pp) | {"pipeline_model_parallel_layout": layout}


@remedy("rebuild_pipeline_layout", "none: a layout for this PP and VPP")
def _rebuild(run: Run) -> Iterator[Change]:
    pp, vpp = run.sizes.pp, run.vpp_written or 1
    if pp > 1:
        yield _clear_layout(run, pp) | {
            "pipeline_model_parallel_layout": even_layout(run.arch.num_layers, pp * vpp, run.mtp),
            "virtual_pipeline_model_parallel_size": vpp if vpp > 1 else None,
        }


@remedy("pp_that_divides", "more memory per GPU when PP shrinks")
def _pp_divisor(run: Run) -> Iterator[Change]:
    for pp in range(run.sizes.pp - 1, 0, -1):
        if run.arch.num_layers % pp == 0 and run.num_gpus % pp == 0:
            yield _clear_layout(run, pp)
            return


@remedy("vpp_that_divides", "another pipeline bubble")
def _vpp_divisor(run: Run) -> Iterator[Change]:
    per_rank, rest = divmod(run.arch.num_layers, run.sizes.pp)
    if rest:
        return
    wanted = run.vpp_written or 1
    for vpp in sorted((v for v in range(2, per_rank + 1) if per_rank % v == 0), key=lambda v: (abs(v - wanted), v)):
        yield {"virtual_pipeline_model_parallel_size": vpp}


@remedy("tp<=kv_heads", "more memory per GPU")
def _tp_kv(run: Run) -> Iterator[Change]:
    if run.sizes.tp > run.arch.num_query_groups:
        yield {"tensor_model_parallel_size": run.arch.num_query_groups}


def _smaller(name: str, size: int) -> Iterator[Change]:
    while size > 1:
        size //= 2
        yield {name: size}


@remedy("reduce_ep", "more expert weights per GPU")
def _reduce_ep(run: Run) -> Iterator[Change]:
    yield from _smaller("expert_model_parallel_size", run.sizes.ep)


@remedy("reduce_cp", "more activations per GPU")
def _reduce_cp(run: Run) -> Iterator[Change]:
    yield from _smaller("context_parallel_size", run.sizes.cp)


@remedy("reduce_tp", "more weights and activations per GPU")
def _reduce_tp(run: Run) -> Iterator[Change]:
    yield from _smaller("tensor_model_parallel_size", run.sizes.tp)


@remedy("reduce_pp", "more weights per GPU")
def _reduce_pp(run: Run) -> Iterator[Change]:
    pp = run.sizes.pp
    while pp > 1:
        pp //= 2
        yield _clear_layout(run, pp)


@remedy("seq_length_that_divides", "a slightly other sequence length")
def _seq(run: Run) -> Iterator[Change]:
    unit = 2 * run.sizes.cp * (run.sizes.tp if run.sequence_parallel else 1)
    rounded = -(-run.seq_length // unit) * unit
    if rounded != run.seq_length and rounded < 128 * MIB:
        yield {"seq_length": rounded}


@remedy("gbs_that_divides", "changes the training: another global batch")
def _gbs(run: Run) -> Iterator[Change]:
    unit = run.micro_batch_size * max(run.sizes.dp, 1)
    rounded = max(-(-run.global_batch_size // unit), 1) * unit
    if rounded != run.global_batch_size:
        yield {"global_batch_size": rounded}


@remedy("ep_that_divides", "another share of the experts per GPU")
def _ep_divisor(run: Run) -> Iterator[Change]:
    experts = run.arch.num_moe_experts or 1
    legal = [n for n in range(1, experts + 1) if experts % n == 0]
    for ep in sorted(legal, key=lambda n: (abs(n - run.sizes.ep), n)):
        yield {"expert_model_parallel_size": ep}


@remedy("rebalance_pipeline", "a slightly longer step when the lighter stages become the slowest")
def _rebalance(run: Run) -> Iterator[Change]:
    """Layers move from the fullest stage to the emptiest, one at a time; without virtual stages."""
    if run.sizes.pp < 2 or run.sizes.vpp > 1:
        return
    peaks = [stage.peak_bytes for stage in estimate(run).stages]
    counts = [chunk.layers for chunk in run.partition.chunks]
    full, light = peaks.index(max(peaks)), peaks.index(min(peaks))
    for moved in range(1, min(4, counts[full])):
        stages = list(counts)
        stages[full] -= moved
        stages[light] += moved
        letters = [f"t*{n}" if n > 1 else "t" * n for n in stages]
        letters[0] = "E" + letters[0]
        letters[-1] += "m" * run.mtp + "L"
        yield _clear_layout(run, run.sizes.pp) | {"pipeline_model_parallel_layout": "|".join(letters)}


@remedy("drop_vpp", "a larger pipeline bubble")
def _no_vpp(run: Run) -> Iterator[Change]:
    if run.sizes.vpp > 1 or run.vpp_written:
        yield _clear_layout(run, run.sizes.pp)


@remedy("gbs_for_pipeline", "changes the training: a larger global batch")
def _gbs_pipeline(run: Run) -> Iterator[Change]:
    unit = run.micro_batch_size * max(run.sizes.dp, 1) * run.sizes.pp
    yield {"global_batch_size": max(-(-run.global_batch_size // unit), 1) * unit}
