"""Facts about pipeline layout strings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_long_context.errors import InvalidLayoutError
from moe_long_context.mesh.layout_string import layout_problems, stages_of, write_layout


def test_repeats_expand_like_megatron() -> None:
    """`Et*3|(tt|)*29m|L` is Ettt, 29 stages of tt, m, L (example of pipeline_parallel_layer_layout.py)."""
    stages = stages_of("Et*3|(tt|)*29m|L")
    assert stages[0] == "Ettt"
    assert stages[1:30] == ("tt",) * 29
    assert stages[30:] == ("m", "L")


def test_list_form_equals_string_form() -> None:
    """Megatron-Core accepts lists of layer names too."""
    assert stages_of([["embedding", "decoder"], ["decoder", "mtp", "loss"]]) == stages_of("Et|tmL")


def test_dsv3_pp8_vpp4_layout_is_accepted() -> None:
    """The 61 layers, one MTP depth and the loss of DeepSeek-V3 on PP8 VPP4."""
    assert layout_problems(stages_of("Et|(tt|)*30mL"), 61, 1, 8) == []


@pytest.mark.parametrize(
    ("layout", "layers", "mtp", "pp", "words"),
    [
        ("Et|tL", 3, 0, 2, "2 decoder layers"),
        ("tE|tL", 2, 0, 2, "E must stand"),
        ("Et|Lt", 2, 0, 2, "L must stand"),
        ("Et|t|L", 2, 0, 2, "not a multiple of PP"),
        ("Et|tL", 2, 1, 2, "0 MTP layers"),
        ("Em|tL", 1, 1, 2, "must stand before the MTP"),
        ("Et|tm|tm|L", 3, 2, 2, "must be in one stage"),
        ("Et|tm|t|L", 3, 1, 2, "last virtual pipeline stage"),
    ],
)
def test_refused_layouts(layout: str, layers: int, mtp: int, pp: int, words: str) -> None:
    """Each condition of validate_layer_layout is named."""
    assert any(words in problem for problem in layout_problems(stages_of(layout), layers, mtp, pp))


@pytest.mark.parametrize("bad", ["Exx|L", "E(t|)*99999*9L", "Et*99999" * 3, "E" + "(t|)*20000" + "L"])
def test_nonsense_is_refused_in_words(bad: str) -> None:
    """Unknown letters and absurd repeats end as InvalidLayoutError, not as a crash or a huge string."""
    with pytest.raises(InvalidLayoutError):
        stages_of(bad)


STAGE = st.text(alphabet="t", max_size=9)


@given(st.lists(STAGE, min_size=1, max_size=40), st.booleans())
def test_writing_then_reading_is_the_identity(middle: list[str], mtp: bool) -> None:
    """stages_of(write_layout(s)) == s for every list of stages."""
    stages = ("E" + middle[0], *middle[1:], "m" * mtp + "L")
    assert stages_of(write_layout(stages)) == stages
