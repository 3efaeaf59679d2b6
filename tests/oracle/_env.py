"""Makes the released Megatron-Core and Megatron Bridge run on a CPU: stand-ins for what only a GPU machine has.

Import this before anything of megatron. Owns the stand-ins and nothing else; what is measured lives in the parts.
Order matters: Megatron-Core is imported while Transformer Engine is truly absent, so that it never picks TE layers.

    prepare()                 Megatron-Core importable
    prepare(bridge=True)      Megatron Bridge too
    pretend_te()              availability checks of Transformer Engine pass (for config validation only)
    cpu_as_device()           torch.cuda calls that modules make while being built act on the CPU
    fake_ranks(world, rank)   a process group of `world` ranks that never communicates
"""

from __future__ import annotations

import abc
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import sys
import types
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BRIDGE_STAND_INS = (
    "transformer_engine",
    "transformer_engine_torch",
    "datasets",
    "megatron.energon",
    "modelopt",
    "diffusers",
)
TE_VERSION = "2.14.0"

for _path in (ROOT / "tools", ROOT / "tests" / "oracle"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))


class _AnythingMeta(abc.ABCMeta):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return Anything

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __getitem__(cls, item: Any) -> Any:
        return cls


class Anything(metaclass=_AnythingMeta):
    """Stands in for any class, function, decorator, constant or type of a package that is not here."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Anything and len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __getitem__(self, item: Any) -> Any:
        return self


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0.0.0"
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.roots: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if any(fullname == root or fullname.startswith(root + ".") for root in self.roots):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


_finder = _Finder()


def stand_in(*names: str) -> None:
    """Let each dotted package that is not installed import as an empty stand-in."""
    for name in names:
        try:
            absent = importlib.util.find_spec(name) is None
        except ModuleNotFoundError:
            absent = True
        if absent:
            _finder.roots.add(name)


def prepare(bridge: bool = False) -> None:
    """Import Megatron-Core (and with `bridge` make Megatron Bridge importable); safe to call twice."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }.items():
        os.environ.setdefault(name, value)
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)
    _add_missing_to_stdlib()
    _import_core()
    if bridge:
        importlib.import_module("transformers")
        stand_in(*BRIDGE_STAND_INS)


def _add_missing_to_stdlib() -> None:
    """`typing.override` is the one thing of Python 3.12 that the wheels use."""
    if not hasattr(typing, "override"):
        typing.override = importlib.import_module("typing_extensions").override  # type: ignore[attr-defined]


def _import_core() -> None:
    """torch has to see that triton is absent before the stand-in hides it, or torch._inductor fails to import."""
    for name in ("torch", "torch._inductor.runtime.triton_compat", "torch.utils._triton"):
        importlib.import_module(name)
    sys.modules["torch.utils._triton"].has_triton_package()  # type: ignore[attr-defined]
    stand_in("triton")
    for name in ("megatron.core", "megatron.core.transformer.transformer_config", "megatron.core.models.gpt"):
        importlib.import_module(name)


def pretend_te(version: str = TE_VERSION) -> None:
    """Satisfy the availability checks of config validation. Never build or run a model in the same process."""
    prepare(bridge=True)
    from megatron.core import utils
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer.moe import moe_utils
    from packaging.version import Version

    utils._te_version = Version(version)
    kernels = {
        moe_utils: (
            "fused_permute",
            "fused_permute_with_probs",
            "fused_sort_chunks_by_index",
            "fused_sort_chunks_by_index_with_probs",
            "fused_unpermute",
        ),
        rope_utils: ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"),
    }
    for module, names in kernels.items():
        for name in names:
            if getattr(module, name, None) is None:
                setattr(module, name, _no_kernel)
    importlib.import_module("transformer_engine.pytorch.optimizers").FusedAdam = FusedAdam  # type: ignore[attr-defined]


def _no_kernel(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("a Transformer Engine kernel was called; only its presence is pretended here")


class FusedAdam:
    """The keyword names that OptimizerConfig looks for in Transformer Engine's optimizer."""

    def __init__(
        self,
        params: Any = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        master_weights: bool = False,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
    ) -> None:
        _no_kernel()


class _Idle:
    """A CUDA stream or event on a machine that has none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    wait_stream = wait_event = synchronize = record = wait = _nothing

    def record_event(self, *args: Any) -> _Idle:
        return _Idle()

    def query(self) -> bool:
        return True


def cpu_as_device() -> None:
    """Make the torch.cuda calls of module construction and forward act on the CPU; arithmetic is untouched.

    torch remembers on first use which functions torch.device("meta") redirects; that has to be before they are wrapped.
    """
    import torch
    from megatron.core.tensor_parallel import random as tp_random

    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = _Idle
    cuda.current_stream = cuda.default_stream = lambda *a, **k: _Idle()
    cuda.stream = lambda *a, **k: contextlib.nullcontext()
    cuda.synchronize = cuda.empty_cache = lambda *a, **k: None
    cuda.current_device = lambda: torch.device("cpu")
    cuda.get_rng_state = lambda *a, **k: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    for owner in (torch.Tensor, torch.nn.Module):
        owner.cuda = lambda self, *a, **k: self  # type: ignore[method-assign, assignment]
    torch.Tensor.pin_memory = lambda self, *a, **k: self  # type: ignore[method-assign, assignment]
    sys.modules["torch.utils._device"]._device_constructors()  # type: ignore[attr-defined]
    for name in ("tensor", "empty", "zeros"):
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    random: Any = tp_random
    random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    _no_fp8(random)


def _without_pinning(function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return call


def _no_fp8(random: Any) -> None:
    if hasattr(random, "FP8GlobalStateManager"):
        return
    random.FP8GlobalStateManager = type(
        "NoFp8", (), {"is_fp8_enabled": staticmethod(lambda: False), "get_fp8_recipe": staticmethod(lambda: None)}
    )
    random.fp8_autocast = lambda *a, **k: contextlib.nullcontext()
    random.activation_recompute_forward = lambda *a, **k: contextlib.nullcontext()


@contextlib.contextmanager
def fake_ranks(world: int, rank: int = 0, **sizes: Any) -> Iterator[None]:
    """A fake default process group and Megatron's groups of `sizes` (names of initialize_model_parallel)."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
