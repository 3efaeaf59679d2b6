"""Nothing that stands in a configuration breaks out into Python, a shell, YAML or a comment."""

from __future__ import annotations

import ast
import shlex
import subprocess
from typing import Any

import pytest
import yaml

from moe_long_context.config.reading import read_document
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError
from moe_long_context.recipes.bridge_overrides import hydra_value
from moe_long_context.recipes.text import comment, identifier, python_literal
from moe_long_context.recipes.writers import WRITERS

NASTY = 'x\'; import os; os.system("touch pwned") #\\ $(touch pwned) `id` "; rm -rf / \n# end'


def nasty_run() -> Run:
    return resolve({
        "model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 8, "seq_length": 8192, "ep": 8,
        "env": {"NAME": NASTY.replace("\n", " ")}, "megatron": {"checkpoint.save": NASTY.replace("\n", " ")},
    })  # fmt: skip


def test_python_text_stays_one_literal() -> None:
    """repr is the only way a string enters a script, so the parsed tree holds it unchanged and no call of os.system."""
    (text,) = WRITERS["bridge-python"](nasty_run()).files.values()
    tree = ast.parse(text)
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert NASTY.replace("\n", " ") in strings
    assert not any("system" in call for call in calls)


@pytest.mark.parametrize("name", ["megatron-lm", "slime", "slurm"])
def test_shell_text_stays_one_word(name: str, tmp_path: Any) -> None:
    """bash runs the exports of the emitted script and sees the value, and nothing else happens."""
    text = list(WRITERS[name](nasty_run()).files.values())[-1]
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export NAME="))
    done = subprocess.run(
        ["bash", "-c", exports + '\nprintf %s "$NAME"'], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout == (NASTY.replace("\n", " ") if exports else "")
    assert list(tmp_path.iterdir()) == []


def test_bash_accepts_every_shell_script() -> None:
    """`bash -n` parses without running."""
    for name in ("megatron-lm", "slime", "slurm"):
        for path, text in WRITERS[name](nasty_run()).files.items():
            if path.endswith((".sh", ".sbatch")):
                subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_verl_yaml_holds_the_text_as_data() -> None:
    """JSON strings are YAML strings."""
    run = resolve({**nasty_run().written.written(), "megatron": {"model.config_logger_dir": NASTY}})
    (text,) = WRITERS["verl"](run).files.values()
    block = yaml.safe_load(text)["actor_rollout_ref"]["actor"]["megatron"]["override_transformer_config"]
    assert block["config_logger_dir"] == NASTY


def test_text_that_hydra_would_interpolate_is_refused() -> None:
    """OmegaConf resolves ${...} even inside quotes."""
    with pytest.raises(BadValueError):
        hydra_value("${oc.env:HOME}")


@pytest.mark.parametrize("value", ["it's", "a\\'b", "trailing\\", "Et|(tt|)*30mL", "null", "a, b", "[x]", "{k: v}", ""])
def test_hydra_quoting_survives_the_shell_and_the_reader(value: str) -> None:
    """The word is quoted for Hydra, then for the shell; the reader undoes both."""
    word = shlex.quote(f"checkpoint.save={hydra_value(value)}")
    assert read_document(f"{word} model.tensor_model_parallel_size=2", "x").megatron.get("checkpoint.save") == value


def test_a_comment_is_one_line() -> None:
    """A model id or a reason cannot start a new line of the script."""
    assert "\n" not in comment(NASTY)


@pytest.mark.parametrize("name", ["a.b", "a b", "__import__('os')", "", "1x"])
def test_only_plain_names_become_attributes(name: str) -> None:
    """A dotted or quoted key cannot reach Python as code."""
    with pytest.raises(BadValueError):
        identifier(name)


@pytest.mark.parametrize("value", [float("inf"), -1.5, [1, (2,)], {"a": None}, True, "ü\u2028"])
def test_literals_evaluate_to_what_was_written(value: Any) -> None:
    """Every literal is read back by Python itself."""
    assert eval(python_literal(value), {"float": float}) == value


def test_anything_but_plain_data_is_refused() -> None:
    """An object's repr is not a literal."""
    with pytest.raises(BadValueError):
        python_literal(object())


def test_a_newline_in_an_override_is_refused() -> None:
    """A word of a script has one line."""
    config = RunConfig.read({**nasty_run().written.written(), "megatron": {"checkpoint.save": "a\nb"}})
    with pytest.raises(BadValueError):
        WRITERS["bridge-overrides"](resolve(config))
