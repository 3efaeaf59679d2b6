"""Pipeline layout strings such as `Et*3|(tt|)*29m|L`: reading, checking and writing.

E embedding, t decoder layer, m MTP layer, L loss; `|` ends a stage; `x*n` and `(..)*n` repeat; commas are cosmetic.
Source: megatron-core 0.19.2 megatron/core/transformer/pipeline_parallel_layer_layout.py, parse_str_to_list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moe_long_context.errors import InvalidLayoutError, shorten

MAX_STAGES = 1 << 14
MAX_TEXT = 1 << 16
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}

_GROUP = re.compile(r"\(([^)]+)\)\*(\d{1,5})")
_SINGLE = re.compile(r"(.)\*(\d{1,5})")


def stages_of(layout: str | Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The stages of a layout in execution order, each as letters: "Et|tL" -> ("Et", "tL").

    A list of lists of names (Megatron-Core's other form) is accepted too.

    Raises:
        InvalidLayoutError: an unknown letter or name, or an expansion that is absurdly long.
    """
    if not isinstance(layout, str):
        return tuple("".join(_letter(name) for name in stage) for stage in layout)
    text = layout.replace(",", "").strip()
    for pattern in (_GROUP, _SINGLE):
        text = _expand(pattern, text)
    for char in text:
        if char not in "Etm|L":
            raise InvalidLayoutError(
                f"pipeline_model_parallel_layout has the letter {char!r}; only E, t, m, L and | are known.",
                given=shorten(layout),
                allowed=["E", "t", "m", "L", "|"],
                fix="write for example Et*3|(tt|)*29m|L",
            )
    stages = tuple(text.split("|"))
    if len(stages) > MAX_STAGES:
        raise InvalidLayoutError(
            f"pipeline_model_parallel_layout has more than {MAX_STAGES} stages.", given=shorten(layout)
        )
    return stages


def _letter(name: str) -> str:
    folded = str(name).strip()
    if folded in LETTERS.values():
        return folded
    try:
        return LETTERS[folded.lower()]
    except KeyError:
        raise InvalidLayoutError(
            f"pipeline_model_parallel_layout names {shorten(folded)!r}.", given=shorten(folded), allowed=list(LETTERS)
        ) from None


def _expand(pattern: re.Pattern[str], text: str) -> str:
    length = len(text) + sum(len(m.group(1)) * int(m.group(2)) for m in pattern.finditer(text))
    if length > MAX_TEXT:
        raise InvalidLayoutError(
            f"pipeline_model_parallel_layout expands to more than {MAX_TEXT} letters.", given=shorten(text)
        )
    return pattern.sub(lambda m: m.group(1) * int(m.group(2)), text)


def write_layout(stages: Sequence[str]) -> str:
    """The shortest plain form of stages: runs of one letter and runs of equal stages are folded.

    `stages_of(write_layout(s)) == tuple(s)`.
    """
    out: list[str] = []
    index = 0
    while index < len(stages):
        run = 1
        while index + run < len(stages) and stages[index + run] == stages[index]:
            run += 1
        stage = _fold_letters(stages[index])
        last = index + run == len(stages)
        whole = run - 1 if last else run
        if whole > 1 and stages[index]:
            out.append(f"({stage}|)*{whole}")
        else:
            out.append(f"{stage}|" * whole)
        if last:
            out.append(stage)
        index += run
    return "".join(out)


def _fold_letters(stage: str) -> str:
    return re.sub(r"(.)\1{3,}", lambda m: f"{m.group(1)}*{len(m.group(0))}", stage)


def _fold_is_safe(stage: str) -> bool:
    return "*" not in stage


def layout_problems(stages: Sequence[str], num_layers: int, mtp_num_layers: int, pp: int) -> list[str]:
    """What Megatron-Core's validate_layer_layout would refuse, one sentence each; empty = accepted."""
    flat = "".join(stages)
    problems = []
    if len(stages) % pp:
        problems.append(f"{len(stages)} stages are not a multiple of PP={pp}")
    if flat.count("E") != 1 or not flat.startswith("E"):
        problems.append("E must stand exactly once, as the very first layer")
    if flat.count("L") != 1 or not flat.endswith("L"):
        problems.append("L must stand exactly once, as the very last layer")
    if flat.count("t") != num_layers:
        problems.append(f"{flat.count('t')} decoder layers (t) where the model has {num_layers}")
    return problems + _mtp_problems(stages, flat, mtp_num_layers, pp)


def _mtp_problems(stages: Sequence[str], flat: str, mtp_num_layers: int, pp: int) -> list[str]:
    problems = []
    if flat.count("m") != mtp_num_layers:
        problems.append(f"{flat.count('m')} MTP layers (m) where the run has {mtp_num_layers}")
    if "m" not in flat:
        return problems
    if "t" in flat[flat.index("m") :]:
        problems.append("decoder layers (t) must stand before the MTP layers (m)")
    if sum("m" in stage for stage in stages) > 1:
        problems.append("all MTP layers (m) must be in one stage")
    holder = next(i for i, stage in enumerate(stages) if "m" in stage)
    if holder < len(stages) - pp:
        problems.append("the stage with the MTP layers must be in the last virtual pipeline stage of its rank")
    return problems
