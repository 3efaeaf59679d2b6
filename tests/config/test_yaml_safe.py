"""Facts about what the one YAML reader refuses."""

import pytest

from moe_long_context.errors import UnreadableFileError
from moe_long_context.yaml_safe import load_text


@pytest.mark.parametrize(
    "text", ["a: &x [1]\nb: *x\n", "a: 1\na: 2\n", "[" * 60 + "]" * 60, "a: !!python/name:os.system"]
)
@pytest.mark.parametrize("dump", [False, True])
def test_what_a_configuration_never_needs_is_refused(text: str, dump: bool) -> None:
    """Aliases, repeated keys, deep nesting and tags; a program's dump may repeat a flat list."""
    if dump and "*x" in text:
        assert load_text(text, dump=True) == {"a": [1], "b": [1]}
        return
    with pytest.raises(UnreadableFileError):
        load_text(text, dump=dump)


def test_an_alias_bomb_does_not_grow() -> None:
    """Lists of aliases to lists of aliases, even in a dump."""
    bomb = "a: &a [x, x]\n" + "".join(f"{n}: &{n} [*{p}, *{p}]\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True))
    with pytest.raises(UnreadableFileError, match="aliases"):
        load_text(bomb, dump=True)
