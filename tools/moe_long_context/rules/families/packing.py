"""Packed and variable-length data, loss averaging, and hybrid context parallelism."""

from __future__ import annotations

import math
from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.families.context_parallel import comms
from moe_long_context.rules.rule import rule

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 32768, "cp": 4, "ep": 8, "gbs": 64}
SFT: dict[str, Any] = {
    **BASE, "data": {"packed": True}, "cp_comm_type": "a2a",
    "megatron": {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False},
}  # fmt: skip
VALIDATE = "megatron-bridge 0.6.2 training/config.py ConfigContainer.validate"
PACKED = "megatron-bridge 0.6.2 data/datasets/packed_sequence.py"


def _specs(run: Run, name: str) -> Any:
    return run.written.megatron.get(f"dataset.offline_packing_specs.{name}")


@rule(
    "packed-seq-div-2cp", "warning", "packed sub-sequences are not padded to 2*CP",
    why="Every document of a pack is split over CP on its own.", fix="set pad_seq_to_mult to lcm(2*CP, CP*TP under SP)",
    where="data", fields="dataset.offline_packing_specs context_parallel_size", source=PACKED,
    fails={"base": SFT, "megatron": {**SFT["megatron"], "dataset.offline_packing_specs": {"pad_seq_to_mult": 1}}},
    passes={"base": SFT, "megatron": {**SFT["megatron"], "dataset.offline_packing_specs": {"pad_seq_to_mult": 8}}},
    escalates=lambda run: _pad_multiple(run) is not None,
    correction="a warning while the multiple is not written: where it comes from is the data's affair",
)  # fmt: skip
def _padded(run: Run) -> str | None:
    s, given = run.sizes, _pad_multiple(run)
    unit = math.lcm(2 * s.cp, s.cp * s.tp if run.sequence_parallel else 1)
    packed = run.written.data.packed and not run.written.megatron.get("dataset.enable_in_batch_packing")
    if s.cp == 1 or (given is None and not packed) or (given is not None and given % unit == 0):
        return None
    said = "unset" if given is None else given
    return f"pad_seq_to_mult is {said}: every document of a pack needs a multiple of lcm(2*CP, CP*TP) = {unit}"


def _pad_multiple(run: Run) -> int | None:
    specs = run.written.megatron.get("dataset.offline_packing_specs")
    given = specs.get("pad_seq_to_mult") if isinstance(specs, dict) else _specs(run, "pad_seq_to_mult")
    return given if isinstance(given, int) else None


@rule(
    "offline-packing-mbs1", "warning", "packed data with micro_batch_size above 1",
    why="A pack is one row; offline packing takes micro batch 1.", fix="set micro_batch_size to 1", where="config",
    fields="micro_batch_size data.packed", source=VALIDATE, fails={"base": SFT, "mbs": 2}, passes={"base": SFT},
    repair=lambda run: {"mbs": 1}, effect="convergence-changing", escalates=lambda run: run.bridge,
    correction="an error in Bridge, whose validate() says so; other front ends pack in their own way",
)  # fmt: skip
def _mbs(run: Run) -> str | None:
    in_batch = run.written.megatron.get("dataset.enable_in_batch_packing")
    packed = run.written.data.packed or run.written.megatron.get("dataset.enable_offline_packing")
    return f"packed data with micro_batch_size={run.micro_batch_size}" if packed and not in_batch and run.micro_batch_size > 1 else None


@rule(
    "inbatch-packing-mbs-gt1", "error", "in-batch packing with micro batch 1",
    why="It packs the samples of one micro batch, so it needs several.", fix="raise micro_batch_size, or turn it off",
    where="config", fields="micro_batch_size dataset.enable_in_batch_packing", source=VALIDATE, frontends=("bridge",),
    fails={"mbs": 1, "megatron": {"dataset.enable_in_batch_packing": True}},
    passes={"mbs": 2, "megatron": {"dataset.enable_in_batch_packing": True}},
)  # fmt: skip
def _in_batch(run: Run) -> str | None:
    on = run.written.megatron.get("dataset.enable_in_batch_packing")
    return "enable_in_batch_packing with micro_batch_size=1" if on and run.micro_batch_size == 1 else None


@rule(
    "packing-flag-pairing", "error", "offline packing without its specs",
    why="The flag and the specs are read together.", fix="give dataset.offline_packing_specs with packed_sequence_size",
    where="config", fields="dataset.enable_offline_packing dataset.offline_packing_specs", source=VALIDATE, frontends=("bridge",),
    fails={"base": SFT, "megatron": {**SFT["megatron"], "dataset.enable_offline_packing": True}}, passes={"base": SFT},
)  # fmt: skip
def _pairing(run: Run) -> str | None:
    flag = run.written.megatron.get("dataset.enable_offline_packing")
    specs = any(path.startswith("dataset.offline_packing_specs") for path in run.written.megatron)
    if flag is None or bool(flag) == specs:
        return None
    return "enable_offline_packing and offline_packing_specs must be given together"


PER_TOKEN = ("model.calculate_per_token_loss", "ddp.average_in_collective")


@rule(
    "sft-cp-per-token-loss", "warning", "fine-tuning under CP without per-token loss",
    why="Each CP rank sees other numbers of valid tokens; averages of averages are wrong.",
    fix="set calculate_per_token_loss True and ddp.average_in_collective False", where="config",
    fields="model.calculate_per_token_loss ddp.average_in_collective context_parallel_size", source=VALIDATE,
    fails={"data": {"packed": True}, "cp_comm_type": "a2a"}, passes={"base": SFT}, frontends=("bridge",),
    repair=lambda run: {"megatron": {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}},
    effect="convergence-changing", escalates=lambda run: any(name in run.written.megatron for name in PER_TOKEN),
    correction="a warning while neither field is written: the released long SFT recipes set both; an error when one is set wrongly",
)  # fmt: skip
def _per_token(run: Run) -> str | None:
    tuned = run.written.data.packed or run.written.peft.type != "none"
    if run.sizes.cp == 1 or not tuned:
        return None
    per_token = run.written.megatron.get("model.calculate_per_token_loss")
    averaged = bool(run.written.field("ddp.average_in_collective"))
    if per_token and not averaged:
        return None
    return f"fine-tuning data under CP={run.sizes.cp} with calculate_per_token_loss={bool(per_token)}, average_in_collective={averaged}"


@rule(
    "cp-loss-masking-average", "warning", "masked sequences averaged per microbatch",
    why="Without per-token loss a heavily masked sequence weighs as much as a full one.",
    fix="set calculate_per_token_loss", where="silently", fields="model.calculate_per_token_loss data.packed",
    source="megatron-core 0.19.2 pipeline_parallel/schedules.py forward_step_calc_loss", silenced_by=("sft-cp-per-token-loss",),
    fails={"cp": 1, "data": {"packed": True}}, passes={"base": SFT},
)  # fmt: skip
def _masked(run: Run) -> str | None:
    masked = run.written.data.packed or run.written.data.variable_length
    on = run.written.megatron.get("model.calculate_per_token_loss")
    return "packed or masked data without calculate_per_token_loss" if masked and not on else None


@rule(
    "cp-p2p-thd-nan", "warning", "packed data over ring CP has a recorded NaN problem",
    why="Bridge's 128K recipe switches to a2a for NaN gradients with p2p on packed data.",
    fix="set cp_comm_type to a2a where heads allow", where="first backward", fields="cp_comm_type data.packed",
    source="megatron-bridge 0.6.2 recipes/qwen (128K SFT recipe comment)",
    fails={"base": SFT, "cp_comm_type": "p2p"}, passes={"base": SFT},
)  # fmt: skip
def _nan(run: Run) -> str | None:
    both = run.written.data.packed and run.sizes.cp > 1 and "p2p" in comms(run)
    return f"packed data with cp_comm_type p2p at CP={run.sizes.cp}" if both else None


@rule(
    "cp-thd-padded-cu-seqlens", "info", "packed CP batches must carry padded cu_seqlens",
    why="A custom batch builder without cu_seqlens_padded and a padding mask fails in the first forward.",
    fix="pass cu_seqlens_padded from your own get_batch", where="first forward", fields="data.packed context_parallel_size",
    source="TransformerEngine pytorch/attention/dot_product_attention/context_parallel.py",
    fails={"base": SFT}, passes={}, correction="the file has it as an error; the released front ends pass them, so it is a note",
)  # fmt: skip
def _cu_seqlens(run: Run) -> str | None:
    return "custom batches must carry cu_seqlens_padded" if run.written.data.packed and run.sizes.cp > 1 else None


@rule(
    "variable-padding-pp-ep", "info", "variable lengths are padded when PP or EP is used",
    why="Stages and expert ranks exchange fixed shapes.", fix="expect padding to the longest sample", where="silently",
    fields="data.variable_length pipeline_model_parallel_size expert_model_parallel_size", source=PACKED,
    fails={"data": {"variable_length": True}}, passes={},
)  # fmt: skip
def _variable(run: Run) -> str | None:
    on = run.written.data.variable_length and (run.sizes.pp > 1 or run.sizes.ep > 1)
    return "variable lengths are padded to one shape under PP or EP" if on else None


MASK_KILLS_AT = 65536
"""Tokens from which the fp32 triangle that the mask is made from takes 16 GiB for each loader worker."""


@rule(
    "attention-mask-dataloader", "warning", "a full attention mask is built for every sample",
    why="The mask is seq x seq: 16 GiB at 128K as bool.", fix="let the kernel make it: skip_getting_attention_mask_from_dataset True",
    where="data", fields="dataset.create_attention_mask dataset.skip_getting_attention_mask_from_dataset",
    source="megatron-core 0.19.2 datasets/gpt_dataset.py", fails={"megatron": {"dataset.create_attention_mask": True}}, passes={},
    repair=lambda run: {"megatron": {"dataset.skip_getting_attention_mask_from_dataset": True}},
    escalates=lambda run: run.seq_length >= MASK_KILLS_AT,
    needs=("seq_length",),
)  # fmt: skip
def _mask(run: Run) -> str | None:
    made = run.written.megatron.get("dataset.create_attention_mask") is True
    kept = run.written.megatron.get("dataset.skip_getting_attention_mask_from_dataset") is False
    if not (made or kept) or run.seq_length < 16384:
        return None
    if run.written.megatron.get("dataset.skip_getting_attention_mask_from_dataset") is True:
        return None
    return f"a {run.seq_length} x {run.seq_length} mask per sample takes {run.seq_length**2 / 2**30:.1f} GiB, its fp32 triangle four times that"


HYBRID = "megatron-core 0.19.2 megatron/training/arguments.py and transformer/transformer_config.py"


def _hybrid(run: Run) -> bool:
    return bool(run.written.megatron.get("model.hybrid_context_parallel"))


@rule(
    "hybrid-cp-cli-limits", "error", "hybrid CP with what it excludes",
    why="Per-sample CP sizes need PP=1, no graphs, no FSDP and per-token loss.", fix="remove the excluded features",
    where="command line", fields="model.hybrid_context_parallel", source=HYBRID, since="0.16.1",
    fails={"pp": 2, "megatron": {"model.hybrid_context_parallel": True, "model.max_seqlen_per_dp_cp_rank": 8192}}, passes={},
)  # fmt: skip
def _hybrid_limits(run: Run) -> str | None:
    if not _hybrid(run):
        return None
    bad = [("PP > 1", run.sizes.pp > 1), ("CUDA graphs", run.written.cuda_graph.impl != "none"),
           ("Megatron-FSDP", run.written.fsdp.enabled),
           ("no calculate_per_token_loss", not run.written.megatron.get("model.calculate_per_token_loss"))]  # fmt: skip
    names = [name for name, hit in bad if hit]
    return f"hybrid_context_parallel excludes {', '.join(names)}" if names else None


@rule(
    "hybrid-cp-no-mla", "error", "hybrid CP with MLA", why="MLA attention rejects it.", fix="turn hybrid CP off",
    where="model build", fields="model.hybrid_context_parallel", source=HYBRID, since="0.16.1",
    fails={"model": "deepseek-v3", "megatron": {"model.hybrid_context_parallel": True}}, passes={},
)  # fmt: skip
def _hybrid_mla(run: Run) -> str | None:
    return "hybrid_context_parallel is not implemented for MLA" if _hybrid(run) and run.arch.multi_latent_attention else None


@rule(
    "hybrid-cp-even-group", "error", "hybrid CP without its rank limit or with an odd group",
    why="Sub-groups are powers of two within an even DP*CP group, sized by max_seqlen_per_dp_cp_rank.",
    fix="set max_seqlen_per_dp_cp_rank and make DP*CP even", where="process groups",
    fields="model.hybrid_context_parallel model.max_seqlen_per_dp_cp_rank", source=HYBRID, since="0.16.1",
    fails={"megatron": {"model.hybrid_context_parallel": True}}, passes={},
    needs=("num_gpus",),
)  # fmt: skip
def _hybrid_even(run: Run) -> str | None:
    if not _hybrid(run):
        return None
    if run.written.megatron.get("model.max_seqlen_per_dp_cp_rank") is None:
        return "hybrid_context_parallel needs max_seqlen_per_dp_cp_rank"
    group = run.sizes.dp * run.sizes.cp
    return f"DP*CP = {group} is odd" if group % 2 else None
