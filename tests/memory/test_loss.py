"""Facts about logits and loss."""

import pytest

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.memory.loss import loss_bytes, loss_impl
from moe_long_context.units import GIB

DSV3 = {"model": "deepseek-v3", "gpu": "H100", "num_gpus": 8, "seq_length": 4096, "mtp_num_layers": 0}


def run(**changes: object) -> Run:
    """DeepSeek-V3 at 4K without MTP on one rank's view."""
    return resolve({**DSV3, **changes})


@pytest.mark.parametrize(
    ("changes", "impl", "bytes_per_element"),
    [
        ({"loss": "eager"}, "eager", 6),
        ({"loss": "fused", "megatron": {"model.cross_entropy_fusion_impl": "native"}}, "fused_native", 10),
        ({"loss": "fused"}, "fused_te", 2),
        ({"loss": "fused", "versions": {"transformer_engine": "2.19.0"}}, "fused_te_fp32_grad", 6),
    ],
)
def test_forward_bytes_per_logit(changes: dict[str, object], impl: str, bytes_per_element: int) -> None:
    """4,096 tokens x 129,280 vocabulary entries times the row of the table."""
    got = run(**changes)
    assert loss_impl(got) == impl
    assert loss_bytes(got).forward == 4096 * 129280 * bytes_per_element


def test_measured_eager_loss_at_128k() -> None:
    """NovaSky-AI/SkyRL pull 1841: eager loss takes 46.2 GB at 128K tokens with 62,080 vocabulary entries a rank."""
    got = resolve(
        {**DSV3, "seq_length": "128k", "tp": 4, "sp": True, "loss": "eager", "megatron": {"model.vocab_size": 62080 *
        4}}
    )
    assert loss_bytes(got).forward / 1e9 == pytest.approx(46.2, rel=0.06)


def test_fused_linear_never_builds_logits() -> None:
    """Same thread: the fused linear cross-entropy stays under about 4 GB at 262,144 tokens (hidden 2048)."""
    got = resolve(
        {
            "model": "qwen3-30b-a3b", "gpu": "B300", "num_gpus": 8, "seq_length": 262144, "tp": 4, "sp": True,
            "loss": "linear_fused", "megatron": {"model.vocab_size": 62080 * 4},
        }
    )  # fmt: skip
    assert loss_bytes(got).peak < 4.4e9
    assert loss_bytes(got).peak > 1e9


def test_each_mtp_depth_holds_its_own_logits() -> None:
    """Depth logits are kept until the main loss's backward is done."""
    without, with_mtp = loss_bytes(run(loss="eager")), loss_bytes(run(loss="eager", mtp_num_layers=1))
    assert with_mtp.forward - without.forward == 4096 * 129280 * 4


def test_output_backward_holds_the_weight_placeholder() -> None:
    """bf16 logit gradient, input gradient and a placeholder of the head's weight: 0.99 + 0.05 + 1.73 GiB."""
    got = loss_bytes(run())
    assert got.output_backward / GIB == pytest.approx(0.986 + 0.0547 + 1.726, abs=2e-3)
