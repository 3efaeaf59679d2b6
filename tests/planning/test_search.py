"""The search: what it returns is legal and fits, what is pinned stays, and a wall is told in bytes."""

from __future__ import annotations

import pytest

from moe_long_context.config.resolve import Run
from moe_long_context.config.run_config import RunConfig
from moe_long_context.planning.limits import limits_of
from moe_long_context.planning.search import SearchResult, search
from moe_long_context.planning.space import communication_types
from moe_long_context.rules.registry import errors_only


def _search(**fields: object) -> tuple[RunConfig, SearchResult]:
    config = RunConfig.read({"model": "qwen3-30b-a3b", "gpu": "H100", "seq_length": 32768, **fields})
    return config, search(config, limits_of(config, Run(config), (), 1, False), top=3)


def test_plans_are_legal_fit_and_come_fastest_first() -> None:
    _, found = _search(num_gpus=16)
    assert found.plans
    for plan in found.plans:
        assert plan.fits in ("yes", "tight")
        assert not errors_only(plan.run)
        assert plan.memory.peak.peak_bytes < plan.run.gpu.memory_bytes
    assert [p.order for p in found.plans] == sorted(p.order for p in found.plans)


def test_every_candidate_is_accounted_for() -> None:
    """Shown plus rejected is what was searched: nothing falls out unseen."""
    _, found = _search(num_gpus=8)
    assert found.searched == len(found.plans) + sum(found.rejected.values())


@pytest.mark.parametrize("pin", [{"tp": 2}, {"cp": 4}, {"pp": 2}, {"ep": 4}])
def test_what_is_pinned_stays(pin: dict[str, int]) -> None:
    config, found = _search(num_gpus=16, **pin)
    name = {"tp": "tp", "cp": "cp", "pp": "pp", "ep": "ep"}[next(iter(pin))]
    assert found.plans
    assert {getattr(p.run.sizes, name) for p in found.plans} == set(pin.values())
    assert config.num_gpus == 16


def test_a_wall_says_how_many_bytes_are_missing_even_when_no_layout_comes_close() -> None:
    """DeepSeek-V3's gradients alone (671 B elements x 4 bytes) are twice the memory of 16 H100."""
    _, found = _search(model="deepseek-v3", num_gpus=16, seq_length=131072)
    assert not found.plans
    assert found.wall is not None
    assert found.wall.missing_bytes > 0
    assert max(found.wall.components, key=lambda n: found.wall.components[n]) == "gradients"


@pytest.mark.parametrize(("version", "expected"), [("2.16.0", "a2a"), ("2.11.0", "a2a+p2p")])
def test_latent_attention_gets_a2a_only_where_transformer_engine_takes_it(version: str, expected: str) -> None:
    config = RunConfig.read(
        {
            "model": "deepseek-v3",
            "gpu": "H100",
            "num_gpus": 256,
            "seq_length": 131072,
            "versions": {"transformer_engine": version},
        }
    )
    run = Run(config)
    kinds = [c[0] for c in communication_types(run.arch, 1, 32, limits_of(config, run, (), 1, False))]
    assert kinds == ["p2p", expected]
