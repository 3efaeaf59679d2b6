"""`Run`: a run configuration with every size filled in. What was taken as default is listed in `assumptions`.

Owns the defaults of the two front ends. Modules below (mesh, memory, speed, rules) read only this, never ask twice.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.gpu import Gpu
from moe_long_context.catalog.loader import first_problem, model_entry
from moe_long_context.catalog.loader import gpu as gpu_named
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, InvalidLayoutError, shorten
from moe_long_context.mesh.balance import balanced_stages
from moe_long_context.mesh.layout_string import write_layout
from moe_long_context.mesh.partition import Partition, PartitionRequest, partition
from moe_long_context.mesh.sizes import Sizes, min_gpus, num_microbatches

FP8_PRECISIONS = ("fp8_tensorwise", "fp8_delayed", "fp8_blockwise", "mxfp8")
NEEDED = ("model", "gpu", "num_gpus", "seq_length")
STAND_INS: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "seq_length": 4096}
DEFAULT_TE_VERSION = "2.16.0"
FLEX = ("deepep", "hybridep", "ncclep")


class Run:
    """The resolved run. Attributes are plain values; sizes are never None.

    With `partial`, facts that were not given get a stand-in and are named in `missing`; rules about them stay silent.
    """

    def __init__(self, config: RunConfig, partial: bool = False) -> None:
        self.written = _with_stand_ins(config) if partial else config
        self.missing = frozenset(n for n in NEEDED if getattr(config, n) is None) if partial else frozenset()
        config = self.written
        self.assumptions: list[str] = [
            f"{n} = {STAND_INS.get(n, 'the smallest that fits')} (not given)" for n in sorted(self.missing)
        ]
        self.assumptions += config.reader_notes
        self.model_id, self.arch, self.recipe_defaults = _architecture(config, self._assume)
        self.gpu = _gpu(config)
        self.bridge = config.frontend == "bridge"
        self.seq_length = self._need("seq_length")
        self.num_gpus = self._smallest() if "num_gpus" in self.missing else self._need("num_gpus")
        self.gpus_per_node = config.gpus_per_node or self.gpu.gpus_per_node
        self._sizes()
        self._batch()
        self._training()

    def _assume(self, text: str) -> None:
        self.assumptions.append(text)

    def _need(self, name: str) -> int:
        value = getattr(self.written, name)
        if value is None:
            raise BadValueError(
                f"{name} is needed.",
                given=None,
                fix="give at least model, gpu, num_gpus and seq_length",
                code="missing_field",
            )
        return int(value)

    def _smallest(self) -> int:
        c = self.written
        tp, ep = c.tensor_model_parallel_size or 1, c.expert_model_parallel_size or 1
        etp = c.expert_tensor_parallel_size or (1 if self.bridge and ep > 1 else tp)
        return min_gpus(tp, c.context_parallel_size or 1, c.pipeline_model_parallel_size or 1, ep, etp)

    def _default(self, name: str, value: Any, why: str = "") -> Any:
        written = getattr(self.written, name)
        if written is not None:
            return written
        self._assume(f"{name} = {value}{' (' + why + ')' if why else ''}")
        return value

    def _sizes(self) -> None:
        c = self.written
        tp = self._default("tensor_model_parallel_size", 1)
        cp = self._default("context_parallel_size", 1)
        pp = self._default("pipeline_model_parallel_size", 1)
        ep = self._default("expert_model_parallel_size", 1)
        etp = c.expert_tensor_parallel_size
        if etp is None:
            etp = 1 if self.bridge and ep > 1 else tp
            if tp > 1 and self.arch.is_moe:
                self._assume(f"expert_tensor_parallel_size = {etp} ({self.frontend_name} default)")
        self.vpp_written = c.virtual_pipeline_model_parallel_size
        self.sizes = Sizes(self.num_gpus, tp, cp, pp, self._vpp(pp), ep, etp)
        sp = c.sequence_parallel
        if sp is None and tp > 1:
            sp = self.bridge and self.arch.is_moe
            self._assume(
                f"sequence_parallel = {sp} ({'Bridge MoE recipes set it with TP > 1' if sp else 'framework default'})"
            )
        self.sequence_parallel = bool(sp) and tp > 1
        self.cp_comm_type = c.cp_comm_type or "p2p"

    @cached_property
    def account_embedding(self) -> bool:
        """account_for_embedding_in_pipeline_split, by the released recipe where nothing else splits the layers."""
        return self._accounted("account_for_embedding_in_pipeline_split")

    @cached_property
    def account_loss(self) -> bool:
        """account_for_loss_in_pipeline_split, by the released recipe where nothing else splits the layers."""
        return self._accounted("account_for_loss_in_pipeline_split")

    def _accounted(self, name: str) -> bool:
        c = self.written
        given = getattr(c, name)
        if given is not None:
            return bool(given)
        other = (
            c.pipeline_model_parallel_layout,
            c.num_layers_in_first_pipeline_stage,
            c.num_layers_in_last_pipeline_stage,
        )
        takes = (
            self.bridge
            and self.sizes.pp > 1
            and all(value is None for value in other)
            and "model.num_layers" not in c.megatron
        )
        if takes and self.recipe_defaults.get(name):
            self._assume(f"{name} = True (the model's released recipe)")
            return True
        return False

    @property
    def recipe_layout_known(self) -> bool:
        """Whether the model's released recipe has its own layout for this PP and VPP."""
        known = self.recipe_defaults.get("pipeline_layouts", ()) if self.bridge else ()
        return [self.sizes.pp, self.sizes.vpp] in [list(pair) for pair in known]

    @property
    def frontend_name(self) -> str:
        """The front end in words."""
        return "Megatron Bridge" if self.bridge else "Megatron-LM"

    def _vpp(self, pp: int) -> int:
        layout = self.written.pipeline_model_parallel_layout
        if layout is not None:
            from moe_long_context.mesh.layout_string import stages_of

            try:
                stages = len(stages_of(layout))
            except InvalidLayoutError:
                return self.vpp_written or 1
            return stages // pp if stages % pp == 0 else 1
        return (self.vpp_written or 1) if pp > 1 else 1

    def _batch(self) -> None:
        c = self.written
        self.micro_batch_size = self._default("micro_batch_size", 1)
        replicas = max(self.sizes.dp, 1)
        if c.global_batch_size is None:
            rounds = max(self.sizes.pp, 1) * 2 if self.sizes.pp > 1 else 1
            self.global_batch_size = self.micro_batch_size * replicas * rounds
            self._assume(f"global_batch_size = {self.global_batch_size} (DP x MBS x {rounds} microbatches)")
        else:
            self.global_batch_size = c.global_batch_size
        self.num_microbatches = num_microbatches(self.global_batch_size, self.micro_batch_size, replicas)

    def _training(self) -> None:
        c = self.written
        self.precision = self._default("precision", "bf16")
        self.dispatcher = c.dispatcher or self._framework(
            "model.moe_token_dispatcher_type", "alltoall" if self.bridge else "allgather"
        )
        if c.dispatcher is None and self.arch.is_moe:
            self._assume(f"dispatcher = {self.dispatcher}")
        self.recompute_granularity = c.recompute.granularity if c.recompute else None
        self.recompute_method = c.recompute.method if c.recompute else None
        self.recompute_num_layers = c.recompute.num_layers if c.recompute else None
        self.recompute_modules = _modules(c)
        self.offload_modules = frozenset(c.activation_offload.modules)
        self.loss = self._default("loss", "fused" if self.bridge else "eager", f"{self.frontend_name} default")
        self.attention_backend = c.attention_backend or "auto"
        self.eager_attention = self._eager_attention()
        self.gradient_accumulation_fusion = bool(self._framework("model.gradient_accumulation_fusion", True))
        self.te_version = _version_tuple(c.versions.transformer_engine or DEFAULT_TE_VERSION)
        self._loss_impl()
        self._optimizer()
        self._vocab()

    def _eager_attention(self) -> bool:
        """Whether attention builds its whole matrix of scores: unfused, local, or both kernels switched off."""
        local = self.written.megatron.get("model.transformer_impl") == "local"
        off = all(str(self.written.env.get(name)) == "0" for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"))
        return self.attention_backend in ("unfused", "local") or local or off

    @property
    def own_script(self) -> bool:
        """A Megatron-LM command line that describes its own model: what it leaves out has the framework's default."""
        return not self.bridge and isinstance(self.written.model, dict)

    def dropout(self, name: str) -> float:
        """`attention_dropout` or `hidden_dropout`: as written; else 0 as every released MoE recipe sets it, but
        Megatron-LM's own 0.1 in a command line that does not name it."""
        path = f"model.{name}"
        return float((self.written.field(path) if self.own_script else self.written.megatron.get(path)) or 0.0)

    def _loss_impl(self) -> None:
        written = self.written.megatron.get("model.cross_entropy_fusion_impl")
        default = self.recipe_defaults.get("cross_entropy_fusion_impl", "native") if self.bridge else "native"
        self.cross_entropy_fusion_impl = str(written or default)
        if self.loss == "fused" and written is None:
            self._assume(f"cross_entropy_fusion_impl = {default} (the model's released recipe)")

    def _framework(self, path: str, default: Any) -> Any:
        return self.written.megatron.get(path, default)

    def _optimizer(self) -> None:
        o = self.written.optimizer
        self.optimizer = o.type or "adam"
        self.distributed_optimizer = self.bridge if o.distributed is None else o.distributed
        if o.distributed is None:
            self._assume(f"optimizer.distributed = {self.distributed_optimizer} ({self.frontend_name} default)")
        fraction = o.cpu_offload_fraction
        if o.cpu_offload and fraction is None:
            fraction = 0.0 if self.bridge else 1.0
            self._assume(f"optimizer.cpu_offload_fraction = {fraction} ({self.frontend_name} default)")
        self.cpu_offload = bool(fraction) if o.cpu_offload is None else o.cpu_offload
        self.cpu_offload_fraction = (fraction or 0.0) if self.cpu_offload else 0.0
        self.precision_aware = bool(o.precision_aware)
        self.grad_dtype = o.grad_dtype or "fp32"
        self.moment_dtype = o.moment_dtype or "fp32"
        self.master_dtype = o.master_dtype or "fp32"
        self.fp8_primary_weights = self._fp8_primary_weights()

    def _fp8_primary_weights(self) -> bool:
        """Whether weights live in FP8. Bridge's mixed-precision recipes gather FP8 parameters except for blockwise."""
        for path in ("mixed_precision.fp8_param_gather", "mixed_precision.fp8_param", "ddp.fp8_param_gather"):
            if path in self.written.megatron:
                return bool(self.written.megatron[path])
        default = self.bridge and self.precision in ("fp8_tensorwise", "fp8_delayed", "mxfp8")
        if default:
            self._assume(f"fp8_param_gather = True (Bridge's {self.precision} mixed-precision recipe)")
        return default

    def _vocab(self) -> None:
        v = self.written.vocab
        pad = (not self.bridge) if v.should_pad is None else v.should_pad
        multiple = (v.divisible_by or 128) * self.sizes.tp
        size = self.arch.vocab_size
        self.padded_vocab_size = -(-size // multiple) * multiple if pad else size

    @cached_property
    def mtp(self) -> int:
        """MTP depths of the run."""
        return int(self.arch.mtp_num_layers or 0)

    @cached_property
    def tokens_per_cp_rank(self) -> int:
        """Tokens of one microbatch on one CP rank, before TP/SP divides them."""
        return int(-(-self.seq_length // self.sizes.cp) * self.micro_batch_size)

    @cached_property
    def partition(self) -> Partition:
        """The pipeline chunks.

        Raises:
            InvalidLayoutError: layers do not divide, or the layout is refused.
        """
        request = self.partition_request
        try:
            return partition(request)
        except InvalidLayoutError:
            if request.layout is not None or request.first is not None or request.last is not None:
                raise
        return partition(request._replace(layout=self._balanced_layout(request)))

    def _balanced_layout(self, request: PartitionRequest) -> str:
        """A stand-in where nothing says how to split layers that do not divide: the estimate still has a meaning.

        Raises:
            InvalidLayoutError: fewer layers than chunks.
        """
        chunks = request.pp * (request.vpp or 1)
        if request.num_layers < chunks - 2:
            raise InvalidLayoutError(
                f"{request.num_layers} layers cannot fill PP*VPP = {chunks} stages.",
                given=str(chunks),
                fix="lower PP or VPP",
            )
        layout = write_layout(balanced_stages(request.num_layers, request.mtp, chunks))
        self._assume(f"pipeline_model_parallel_layout = {layout} (balanced; nothing given splits the layers)")
        return layout

    @property
    def partition_request(self) -> PartitionRequest:
        """What decides the partition."""
        c = self.written
        return PartitionRequest(
            num_layers=self.arch.num_layers,
            pp=self.sizes.pp,
            vpp=self.sizes.vpp if self.sizes.vpp > 1 else None,
            mtp=self.mtp,
            layout=c.pipeline_model_parallel_layout,
            first=c.num_layers_in_first_pipeline_stage,
            last=c.num_layers_in_last_pipeline_stage,
            account_embedding=self.account_embedding,
            account_loss=self.account_loss,
        )

    def require_mesh(self) -> None:
        """Raise unless both meshes fit the GPUs.

        Raises:
            InvalidLayoutError: names the mesh that does not divide, and the nearest GPU counts that do.
        """
        s = self.sizes
        if s.fits_attention and s.fits_expert:
            return
        unit = s.min_gpus
        below, above = s.num_gpus // unit * unit, -(-s.num_gpus // unit) * unit
        which = "TP*CP*PP" if not s.fits_attention else "ETP*EP*PP"
        size = s.attention_ranks if not s.fits_attention else s.expert_ranks
        raise InvalidLayoutError(
            f"{s.num_gpus} GPUs are not a multiple of {which} = {size}.",
            given=f"num_gpus={s.num_gpus}, TP={s.tp}, CP={s.cp}, PP={s.pp}, EP={s.ep}, ETP={s.etp}",
            allowed=[str(n) for n in (below, above) if n],
            fix=f"use a multiple of PP*lcm(TP*CP, ETP*EP) = {unit} GPUs",
        )


def _modules(c: RunConfig) -> frozenset[str]:
    """Modules that selective recompute acts on; Megatron-Core's default list is [core_attn]."""
    if c.recompute is None or c.recompute.granularity != "selective":
        return frozenset()
    return frozenset(("core_attn",) if c.recompute.modules is None else c.recompute.modules)


def _gpu(config: RunConfig) -> Gpu:
    if config.gpu is None:
        raise BadValueError("gpu is needed.", fix="give for example gpu: H100", code="missing_field")
    if isinstance(config.gpu, str):
        return gpu_named(config.gpu)
    data = {"id": "custom", "nic_gb_s": 50.0, "nvlink_gb_s": 450.0, "hbm_tb_s": 3.35, **config.gpu}
    try:
        return Gpu.model_validate(data)
    except ValidationError as error:
        raise BadValueError(
            f"gpu.{first_problem(error)}.",
            given=shorten(str(config.gpu)),
            allowed=sorted(Gpu.model_fields),
            code="bad_gpu",
        ) from None


def _version_tuple(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())


def _architecture(config: RunConfig, assume: Any) -> tuple[str, Architecture, dict[str, Any]]:
    """The model's id, its shape with the run's own overrides applied, and its released recipe's own defaults."""
    if config.model is None:
        raise BadValueError("model is needed.", fix="give for example model: deepseek-v3", code="missing_field")
    overrides = {
        path.split(".", 1)[1]: value
        for path, value in config.megatron.items()
        if path.startswith("model.") and path.split(".", 1)[1] in Architecture.model_fields
    }
    if config.mtp_num_layers is not None:
        overrides["mtp_num_layers"] = config.mtp_num_layers or None
    name, base, defaults = _base_shape(config.model, assume)
    if not overrides:
        return name, base, defaults
    try:
        return name, Architecture.model_validate({**base.model_dump(), **overrides}), defaults
    except ValidationError as error:
        raise BadValueError(
            f"model {first_problem(error)}.", given=shorten(str(overrides)), code="bad_architecture"
        ) from None


def _base_shape(model: str | dict[str, Any], assume: Any) -> tuple[str, Architecture, dict[str, Any]]:
    if isinstance(model, dict):
        try:
            return "custom", Architecture.model_validate(model), {}
        except ValidationError as error:
            raise BadValueError(
                f"model.{first_problem(error)}.",
                given="a mapping",
                allowed=sorted(Architecture.model_fields),
                code="bad_architecture",
            ) from None
    if model.endswith(".json") or (("/" in model or "\\" in model) and Path(model).exists()):
        from moe_long_context.catalog.huggingface import read_config

        entry, notes = read_config(model)
        for note in notes:
            assume(note)
        return entry.id, entry.architecture, {}
    entry = model_entry(model)
    return entry.id, entry.architecture, entry.bridge_defaults


def _with_stand_ins(config: RunConfig) -> RunConfig:
    absent = {name: value for name, value in STAND_INS.items() if getattr(config, name) is None}
    return config.model_copy(update=absent) if absent else config


def resolve(config: RunConfig | dict[str, Any], partial: bool = False) -> Run:
    """Fill every size of a configuration; `partial` puts stand-ins where a needed fact was not given.

    Raises:
        InputError: something needed is missing or cannot be a run.
    """
    return Run(RunConfig.read(config), partial)


__all__ = ["FLEX", "FP8_PRECISIONS", "InvalidLayoutError", "Run", "resolve"]
