"""`Gpu`: what a training GPU and its node offer. Values come from `gpus/<id>.yaml`, each with its source."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from moe_long_context.units import GIB


class Gpu(BaseModel):
    """One GPU model. Rates are peaks, dense (no sparsity), one direction for links."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(max_length=40)
    name: str = Field(default="", max_length=100)
    aliases: tuple[str, ...] = ()
    architecture: str = Field(default="unknown", description="ampere | hopper | blackwell | unknown")
    compute_capability: int = Field(default=0, ge=0, description="major version; 0 = not known")
    memory_gib: float = Field(gt=0, le=4096, description="GiB the CUDA driver reports as total")
    bf16_tflops: float = Field(gt=0, le=1e6)
    fp8_tflops: float | None = Field(default=None, gt=0, le=1e6)
    nvfp4_tflops: float | None = Field(default=None, gt=0, le=1e6)
    hbm_tb_s: float = Field(gt=0, le=1000)
    nvlink_gb_s: float = Field(gt=0, le=1e5, description="GB/s per GPU, one direction")
    nvlink_domain: int = Field(default=8, ge=1, le=1 << 16, description="GPUs that share NVLink")
    nic_gb_s: float = Field(gt=0, le=1e5, description="GB/s per GPU to other nodes, one direction")
    gpus_per_node: int = Field(default=8, ge=1, le=1 << 16)
    host_link_gb_s: float = Field(default=25.0, gt=0, le=1e5, description="GB/s per GPU between host and device")
    host_gib_per_node: float | None = Field(default=None, gt=0)
    sources: dict[str, Any] = Field(default_factory=dict)
    notes: str = ""

    @property
    def memory_bytes(self) -> float:
        """Total device memory in bytes."""
        return self.memory_gib * GIB
