"""Tensors that one real Megatron-Core layer keeps for its backward, for every layer type, recompute set and layout.

A layer of full width runs forward in bf16 on the CPU with the classes of `_te_forward`; every storage that autograd
packs and that is no parameter is listed with shape, dtype and the bytes alive after the forward. Collectives are fake:
sizes are real, values are not. `ends` has the embedding, the final norm, MTP and the loss too.
"""

from __future__ import annotations

from typing import Any

import _env

_env.prepare(bridge=True)
_env.cpu_as_device()

import _te_forward  # noqa: E402

_te_forward.install()

import torch  # noqa: E402
from _activation_cases import ENDS, ENDS_SETS, ENDS_VOCAB, FULL, LENGTHS, cases, label  # noqa: E402
from _models import provider_of  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402

from moe_long_context.config.resolve import Run, resolve  # noqa: E402

GOLDEN = "activations_core-0.19.2.json"
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int64": "i64", "int32": "i32", "bool": "bool"}
ROUTER = ("moe_router_dtype", "moe_aux_loss_coeff", "moe_router_load_balancing_type", "activation_func_clamp_value")
"""Released defaults of a model's recipes that change what is kept."""
FUSIONS = ("bias_activation_fusion", "use_fused_weighted_squared_relu")


class Recorder:
    """Storages that autograd keeps, each once, without those of parameters and buffers."""

    def __init__(self, model: Any) -> None:
        self.kept: dict[int, tuple[Any, tuple[int, ...], str]] = {}
        self.own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}

    def pack(self, tensor: Any) -> Any:
        """Hook of torch.autograd.graph.saved_tensors_hooks."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self.own:
            self.kept.setdefault(storage._cdata, (storage, tuple(tensor.shape), str(tensor.dtype)[6:]))
        return tensor

    def rows(self) -> list[list[Any]]:
        """[dtype, shape, bytes] of each storage that is still alive, largest first."""
        alive = [(s.nbytes(), DTYPES[d], "x".join(map(str, shape))) for s, shape, d in self.kept.values() if s.nbytes()]
        return [[dtype, shape, size] for size, dtype, shape in sorted(alive, reverse=True)]


def kept(run: Run) -> list[list[Any]]:
    """What the layer of this run keeps, on rank 0."""
    model = _filled(_provider(run).provide(pre_process=False, post_process=False))
    recorder = Recorder(model)
    tokens = run.tokens_per_cp_rank // (run.sizes.tp if run.sequence_parallel else 1)
    hidden = torch.full((tokens, 1, run.arch.hidden_size), 0.5, dtype=torch.bfloat16).requires_grad_()
    model.set_input_tensor(hidden)
    positions = torch.arange(run.tokens_per_cp_rank).unsqueeze(0)
    with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
        output = model(input_ids=None, position_ids=positions, attention_mask=None)
    rows = recorder.rows()
    del output
    _release(model, recorder)
    return rows


def _release(model: Any, recorder: Recorder) -> None:
    """Empty every storage: recompute hooks keep the graph alive until a backward that never comes."""
    for storage in [kept[0] for kept in recorder.kept.values()]:
        storage.resize_(0)
    for parameter in model.parameters():
        parameter.untyped_storage().resize_(0)


def ends(run: Run) -> list[list[Any]]:
    """What the layer keeps with embedding, MTP, head and loss around it."""
    provider = _provider(run, vocab_size=ENDS_VOCAB, make_vocab_size_divisible_by=1)
    model = _filled(provider.provide(pre_process=True, post_process=True))
    recorder = Recorder(model)
    tokens = torch.zeros(1, run.seq_length, dtype=torch.long)
    positions = torch.arange(run.seq_length).unsqueeze(0)
    mask = torch.ones(1, run.seq_length)
    with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
        loss = model(input_ids=tokens, position_ids=positions, attention_mask=None, labels=tokens, loss_mask=mask)
    rows = recorder.rows()
    del loss
    _release(model, recorder)
    return rows


def _provider(run: Run, **changes: Any) -> Any:
    recompute = {
        "recompute_granularity": run.recompute_granularity,
        "recompute_method": run.recompute_method,
        "recompute_num_layers": run.recompute_num_layers,
        "recompute_modules": sorted(run.recompute_modules) or None,
        "moe_token_dispatcher_type": run.dispatcher,
    }
    router = {name: run.recipe_defaults[name] for name in ROUTER if name in run.recipe_defaults}
    written = {
        name: run.written.megatron[f"model.{name}"]
        for name in ROUTER + FUSIONS
        if f"model.{name}" in run.written.megatron
    }
    activation = {"activation_func": quick_gelu} if run.arch.activation_func == "quick_gelu" else {}
    settings = {**recompute, **activation, **router, **written, **changes}
    squared = run.arch.activation_func == "squared_relu"
    fused = {"bias_activation_fusion": not squared, "use_fused_weighted_squared_relu": squared}
    provider = provider_of(run, **{**fused, "mtp_num_layers": run.mtp or None, **settings})
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    model_parallel_cuda_manual_seed(1)
    return provider


def _filled(model: Any) -> Any:
    """The model with plain numbers for weights; of the experts only the first one's are used."""
    for name, parameter in model.named_parameters():
        if ".experts." not in name or name.endswith(("weight0", "bias0")):
            parameter.data.fill_(0.01)
    return model.train()


def record() -> dict[str, Any]:
    """Case -> run, and for each recompute set and length the kept tensors; sets other than "none" as differences."""
    return {
        "framework": "megatron-core 0.19.2, megatron-bridge 0.6.2",
        "ends": _ends(),
        "cases": {name: {"run": run, "kept": _case(run, sets)} for name, (run, sets) in cases().items()},
    }


def _ends() -> dict[str, Any]:
    out: dict[str, Any] = {}
    with _env.fake_ranks(1, 0):
        for name, (mtp, recompute) in ENDS_SETS.items():
            out[name] = ends(resolve({**ENDS, "mtp": mtp, "recompute": FULL if recompute else None}))
    return out


def _case(written: dict[str, Any], sets: tuple[Any, ...]) -> dict[str, Any]:
    sizes = resolve({**written, "seq_length": LENGTHS[0]}).sizes
    out: dict[str, Any] = {}
    groups = {"tensor_model_parallel_size": sizes.tp, "expert_tensor_parallel_size": sizes.etp}
    with _env.fake_ranks(sizes.num_gpus, 0, **groups):
        for length in LENGTHS:
            none: list[Any] = []
            for recompute in sets:
                rows = kept(resolve({**written, "seq_length": length, "recompute": recompute}))
                none = none if recompute else rows
                out[f"{length} {label(recompute)}"] = _difference(none, rows) if recompute else {"all": rows}
    return out


def _difference(none: list[Any], rows: list[Any]) -> dict[str, Any]:
    """Rows that the recompute set frees, and those that only it keeps."""
    freed, added = list(none), []
    for row in rows:
        freed.remove(row) if row in freed else added.append(row)
    return {"freed": freed, "added": added}
