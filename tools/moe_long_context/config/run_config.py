"""`RunConfig`: what a person wrote about one training run. Immutable; None means not given.

Owns names, aliases and the check that a value can be a run at all. What the values really become (defaults, front ends)
is `config.resolve`; whether the framework accepts them is `rules`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from moe_long_context.catalog.loader import first_problem
from moe_long_context.config import names
from moe_long_context.config.sections import (
    ActivationOffload,
    CudaGraph,
    Data,
    Fsdp,
    Moe,
    Optimizer,
    Overlap,
    Peft,
    Recompute,
    Versions,
    Vocab,
)
from moe_long_context.errors import BadValueError
from moe_long_context.units import MAX_COUNT, MAX_SEQ_LENGTH, parse_length

PRECISIONS = ("bf16", "fp8_tensorwise", "fp8_delayed", "fp8_blockwise", "mxfp8", "nvfp4")
Size = Field(default=None, ge=1, le=MAX_COUNT)


class RunConfig(BaseModel):
    """One training run in Megatron-Core's field names. `RunConfig.read` builds it, with aliases and clear errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=False)

    model: str | dict[str, Any] | None = Field(
        default=None, description="catalog id, path of a Hugging Face config.json, or a mapping of architecture fields"
    )
    gpu: str | dict[str, Any] | None = Field(default=None, description="GPU name, for example H100 or GB200")
    num_gpus: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="GPUs in the job")
    gpus_per_node: int | None = Field(default=None, ge=1, le=1 << 16)
    seq_length: int | None = Field(
        default=None, ge=1, le=MAX_SEQ_LENGTH, description="tokens per sequence; 128k and 1M are accepted"
    )
    micro_batch_size: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    global_batch_size: int | None = Field(default=None, ge=1, le=1 << 30)

    tensor_model_parallel_size: int | None = Size
    context_parallel_size: int | None = Size
    cp_comm_type: str | tuple[str, ...] | None = Field(default=None, description="p2p, a2a, all_gather or a2a+p2p")
    hierarchical_context_parallel_sizes: tuple[int, ...] | None = Field(default=None, max_length=8)
    pipeline_model_parallel_size: int | None = Size
    virtual_pipeline_model_parallel_size: int | None = Size
    pipeline_model_parallel_layout: str | tuple[tuple[str, ...], ...] | None = Field(
        default=None, description="for example Et*3|(tt|)*29m|L"
    )
    num_layers_in_first_pipeline_stage: int | None = Field(default=None, ge=0, le=1024)
    num_layers_in_last_pipeline_stage: int | None = Field(default=None, ge=0, le=1024)
    account_for_embedding_in_pipeline_split: bool | None = None
    account_for_loss_in_pipeline_split: bool | None = None
    expert_model_parallel_size: int | None = Size
    expert_tensor_parallel_size: int | None = Size
    sequence_parallel: bool | None = None

    precision: Literal["bf16", "fp8_tensorwise", "fp8_delayed", "fp8_blockwise", "mxfp8", "nvfp4"] | None = None
    recompute: Recompute | None = None
    dispatcher: Literal["allgather", "alltoall", "deepep", "hybridep", "ncclep"] | None = None
    optimizer: Optimizer = Optimizer()
    activation_offload: ActivationOffload = ActivationOffload()
    cuda_graph: CudaGraph = CudaGraph()
    overlap: Overlap = Overlap()
    data: Data = Data()
    mtp_num_layers: int | None = Field(default=None, ge=0, le=16, description="left out = the model's own; 0 = none")
    moe: Moe = Moe()
    loss: Literal["eager", "fused", "linear_fused", "chunked"] | None = None
    attention_backend: Literal["auto", "flash", "fused", "unfused", "local"] | None = None
    vocab: Vocab = Vocab()
    peft: Peft = Peft()
    env: dict[str, str] = Field(default_factory=dict, max_length=256)
    fsdp: Fsdp = Fsdp()
    frontend: Literal["bridge", "megatron_lm"] = "bridge"
    versions: Versions = Versions()
    megatron: dict[str, Any] = Field(
        default_factory=dict, max_length=1024, description="any further Bridge field by its dotted path"
    )
    spelling_conflicts: tuple[str, ...] = Field(
        default=(), max_length=256, description="fields that were written twice with different values; the later counts"
    )

    reader_notes: tuple[str, ...] = Field(
        default=(), max_length=256, description="what a reader of another form could not place; shown as assumptions"
    )

    @field_validator("seq_length", mode="before")
    @classmethod
    def _tokens(cls, value: Any) -> Any:
        return value if value is None else parse_length(value)

    @field_validator("env", mode="before")
    @classmethod
    def _env_text(cls, value: Any) -> Any:
        return {k: names.as_flag_text(v) for k, v in value.items()} if isinstance(value, dict) else value

    @classmethod
    def read(cls, source: RunConfig | dict[str, Any]) -> RunConfig:
        """Build from a mapping in any accepted spelling.

        Raises:
            UnknownNameError: a key that no framework field and no alias has; carries the nearest names.
            BadValueError: a value that cannot be a run (zero, negative, absurd, wrong type).
        """
        if isinstance(source, RunConfig):
            return source
        if not isinstance(source, dict):
            raise BadValueError(
                "A run configuration is a mapping of field: value.",
                given=type(source).__name__,
                fix="see `schema memory`",
            )
        data = names.canonical(source)
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise BadValueError(
                f"{first_problem(error)}.",
                given=str(error.errors(include_url=False)[0].get("input"))[:200],
                fix="see `moe-long-context schema memory` for every field and its range",
            ) from None

    def written(self) -> dict[str, Any]:
        """Only what was given, as plain data; `RunConfig.read(c.written()) == c`."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with fields changed; names as in `read`, None removes."""
        data = self.written()
        for key, value in names.canonical(changes, keep_none=True).items():
            if isinstance(value, dict) and isinstance(data.get(key), dict):
                merged = {**data[key], **value}
                data[key] = {k: v for k, v in merged.items() if v is not None}
            else:
                data[key] = value
        return RunConfig.read({k: v for k, v in data.items() if v is not None})

    def field(self, path: str) -> Any:
        """The written value of a framework field by dotted path, else its released default."""
        from moe_long_context.config.framework_fields import default_of

        return self.megatron[path] if path in self.megatron else default_of(path)
