"""Every computed table of references and card.yaml: `python evals/reference_numbers.py` checks, `--write` renews.

A table stands between `<!-- computed: NAME -->` and `<!-- end -->` (in YAML: `# computed: NAME` and `# end`). Its text
is made here, by the tools themselves, so a reference cannot print a number that the tools no longer give.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moe_long_context.catalog.loader import gpu
from moe_long_context.config.reading import read_file
from moe_long_context.config.resolve import resolve
from moe_long_context.memory.loss import LOSS_TABLE
from moe_long_context.tools.memory import estimate_memory
from moe_long_context.tools.throughput import estimate_throughput

ROOT = Path(__file__).resolve().parents[1]
FAMILIES = ("dsv3-128k-h100", "dsv3-256k-h100", "qwen3-235b-128k-gb200")
GPUS = ("A100", "H20", "H100", "H800", "H200", "B200", "B300", "GB200", "GB300")
MOONLIGHT = {"model": "moonlight-16b-a3b", "gpu": "H100", "num_gpus": 8, "seq_length": "64k", "cp": 8, "ep": 8}
BLOCK = re.compile(r"((?:<!--|#) computed: ([a-z-]+)(?: -->)?\n)(.*?)((?:<!--|#) end(?: -->)?\n)", re.S)


def family(name: str) -> str:
    """Path of a shipped configuration."""
    return str(ROOT / "skill" / "configs" / f"{name}.yaml")


def memory(config: Any, **changes: Any) -> Any:
    """The memory result, or the exception of the failed answer."""
    answer = estimate_memory(config, **changes)
    answer.raise_for_error()
    return answer.result


def part(result: Any, name: str) -> float:
    """GiB of one component on the peak stage."""
    return float(result.stages[result.peak_stage].components.get(name, 0.0))


def table(head: str, rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    columns = head.split("|")
    lines = [head, "|".join("---" for _ in columns), *("|".join(str(cell) for cell in row) for row in rows)]
    return "".join(f"|{line}|\n" for line in lines)


def families() -> str:
    """Peak, verdict, sizes and speed of the three shipped families."""
    rows = []
    for name in FAMILIES:
        result, run = memory(family(name)), resolve(read_file(family(name)))
        speed = estimate_throughput(family(name)).result
        low, high = result.interval_gib
        rows.append((
            name, run.num_gpus, run.sizes.min_gpus, run.sizes.dp, run.sizes.edp, f"{result.peak_gib:.1f}",
            f"{low:.1f} to {high:.1f}", result.capacity_gib, result.fits, f"{result.static_gib:.1f}",
            f"{speed.model_tflops_per_gpu:.0f} ({speed.interval_tflops[0]:.0f} to {speed.interval_tflops[1]:.0f})",
        ))  # fmt: skip
    head = "config|GPUs|min GPUs|DP|EDP|peak GiB|90 % band|capacity|fits|static GiB|TFLOP/s per GPU (band)"
    return table(head, rows)


def ring() -> str:
    """What the ring's receive buffers cost against all-to-all."""
    rows = []
    for name in FAMILIES[:2]:
        for kind in ("p2p", "a2a"):
            result = memory(family(name), cp_comm_type=kind)
            cells = (part(result, "working_set"), part(result, "activations"), result.peak_gib)
            rows.append((name, kind, *(f"{cell:.2f}" for cell in cells)))
    return table("config|cp_comm_type|transient in attention forward GiB|activations GiB|peak GiB", rows)


def recompute() -> str:
    """Peak and saving of one module at a time, Moonlight at 64K."""
    base = memory(MOONLIGHT).peak_gib
    rows = [("none", f"{base:.2f}", "0.00")]
    for module in ("core_attn", "mlp", "layernorm", "moe_act", "mla_up_proj", "shared_experts", "moe"):
        peak = memory(MOONLIGHT, recompute={"granularity": "selective", "modules": [module]}).peak_gib
        rows.append((module, f"{peak:.2f}", f"{base - peak:.2f}"))
    full = {"granularity": "full", "method": "uniform", "num_layers": 1}
    peak = memory(MOONLIGHT, recompute=full).peak_gib
    return table(
        "recompute_modules|peak GiB|saves GiB", [*rows, ("(full, every layer)", f"{peak:.2f}", f"{base - peak:.2f}")]
    )


def loss() -> str:
    """Bytes per logit of each implementation."""
    return table(
        "implementation|loss forward B/logit|kept until backward|loss backward B/logit",
        [(name, f"{row.forward:g}", f"{row.saved:g}", f"{row.backward:g}") for name, row in LOSS_TABLE.items()],
    )


def offload() -> str:
    """Optimizer offload on DeepSeek-V3 128K."""
    rows = []
    for fraction, aware in ((0.0, True), (0.5, True), (1.0, False), (1.0, True)):
        changes = {"optimizer.cpu_offload_fraction": fraction, "optimizer.precision_aware": aware}
        result = memory(family(FAMILIES[0]), **changes)
        cells = (part(result, "optimizer"), result.peak_gib)
        rows.append(
            (fraction, aware, *(f"{c:.2f}" for c in cells), f"{result.host_gib_per_node or 0:.0f}", result.fits)
        )
    return table("fraction|precision-aware|optimizer on the GPU GiB|peak GiB|host GiB per node|fits", rows)


def cp_sizing() -> str:
    """TP against CP for Qwen3-235B 128K on GB200, all else as shipped."""
    rows = []
    for tp, cp in ((4, 4), (4, 8), (2, 16), (1, 32)):
        changes = {"tp": tp, "cp": cp, "sequence_parallel": tp > 1}
        result, run = memory(family(FAMILIES[2]), **changes), resolve(read_file(family(FAMILIES[2])).replace(**changes))
        tokens = run.seq_length // (tp * cp)
        rows.append((tp, cp, tokens, run.sizes.dp, run.sizes.min_gpus, f"{result.peak_gib:.1f}", result.fits))
    return table("TP|CP|tokens per rank|DP|min GPUs|peak GiB|fits", rows)


def hardware() -> str:
    """The catalog's GPUs."""
    rows = []
    for name in GPUS:
        g = gpu(name)
        rows.append((name, g.memory_gib, f"{g.bf16_tflops:g}", f"{g.fp8_tflops:g}" if g.fp8_tflops else "-",
                     g.nvlink_domain, g.gpus_per_node, f"{g.nvlink_gb_s:g}", f"{g.nic_gb_s:g}",
                     f"{g.host_gib_per_node:g}"))  # fmt: skip
    head = "GPU|memory GiB|BF16 TFLOP/s|FP8 TFLOP/s|NVLink domain|GPUs per node|NVLink GB/s|NIC GB/s|host GiB per node"
    return table(head, rows)


def card() -> str:
    """The card's computed runs."""
    lines = ["computed_runs:\n"]
    for name in FAMILIES:
        result, run = memory(family(name)), resolve(read_file(family(name)))
        low, high = result.interval_gib
        lines.append(
            f"  - {{config: skill/configs/{name}.yaml, peak_gib: {result.peak_gib:.1f}, interval_gib: [{low:.1f}, "
            f'{high:.1f}], capacity_gib: {result.capacity_gib}, fits: "{result.fits}", min_gpus: {run.sizes.min_gpus}, '
            "basis: modelled, evidence: tool}\n"
        )
    return "".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "families": families, "ring": ring, "recompute": recompute, "loss": loss, "offload": offload,
    "cp-sizing": cp_sizing, "hardware": hardware, "card": card,
}  # fmt: skip


def files() -> list[Path]:
    """The files that may hold computed tables."""
    return [ROOT / "card.yaml", *sorted((ROOT / "skill" / "references").glob("*.md"))]


def renewed(text: str) -> str:
    """The text with every computed table made anew."""
    return BLOCK.sub(lambda m: m[1] + TABLES[m[2]]() + m[4], text)


def main() -> int:
    """Check, or renew with `--write`; 1 when something is stale and was not renewed."""
    stale = [(path, new) for path in files() if (new := renewed(path.read_text())) != path.read_text()]
    for path, new in stale:
        print(f"{path.relative_to(ROOT)}: stale numbers")
        if "--write" in sys.argv:
            path.write_text(new)
    return int(bool(stale) and "--write" not in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
