"""The console command. Every tool's command is built from its registry entry; nothing about layouts is decided here.

Standard output carries only the answer; notes go to standard error. Exit status: 0 done, 1 the answer is no, 2 wrong
input, 3 a fault of the program.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from moe_long_context import __version__
from moe_long_context.adapters.fields import Field, parse_text, run_fields
from moe_long_context.errors import BadValueError, MoeError, UnknownNameError, internal_error, shorten
from moe_long_context.tools import MODULES

COMMANDS = {module: name for name, module in MODULES.items()}
_EXTRA = Path(__file__).parent / "commands"
GPUS_HELP = "count and GPU in one, for example 256xH100"


class LazyGroup(click.Group):
    """Loads only the command that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Tools first, then the others."""
        return [*sorted(COMMANDS), *sorted(f.stem for f in _EXTRA.glob("[a-z]*.py"))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command by name, None when there is none."""
        if cmd_name in COMMANDS:
            return tool_command(cmd_name)
        if (_EXTRA / f"{cmd_name}.py").is_file() and cmd_name.isidentifier():
            command: click.Command = import_module(f"moe_long_context.adapters.commands.{cmd_name}").command
            return command
        return None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """An unknown command names the nearest ones."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version")
def cli() -> None:
    """Plan, estimate, validate and emit long-context MoE training runs for Megatron Bridge and Megatron-Core."""


def tool_command(name: str) -> click.Command:
    """The click command of one tool, from its options model and the run configuration's fields."""
    tool = import_tool(name)
    params: list[click.Parameter] = []
    if tool.configs == 2:
        params += [click.Argument(["a"], type=str), click.Argument(["b"], type=str)]
    else:
        params += _config_params()
    params += [_option_param(key, info) for key, info in tool.options.model_fields.items()]
    params.append(click.Option(["--json", "as_json"], is_flag=True, help="print exactly one JSON object"))

    def run(**given: Any) -> None:
        as_json = given.pop("as_json") or "--json" in sys.argv
        options = {k: given.pop(k) for k in list(tool.options.model_fields) if given.get(k) not in (None, (), False)}
        given = {k: v for k, v in given.items() if k not in tool.options.model_fields}
        if tool.configs == 2:
            answer = tool.call(given["a"], given["b"], **options)
        else:
            answer = tool.call(config_of(given), **options)
        show(answer, as_json, name)
        sys.exit(answer.exit_status)

    return click.Command(name, params=params, callback=run, help=tool.summary, short_help=tool.summary)


def import_tool(command: str) -> Any:
    """The registry entry of a command."""
    module = import_module(f"moe_long_context.tools.{command}")
    registry: dict[str, Any] = import_module("moe_long_context.tools._tool").REGISTRY
    del module
    return registry[COMMANDS[command]]


def _config_params() -> list[click.Parameter]:
    params: list[click.Parameter] = [
        click.Option(["--config"], help="run configuration, YAML or JSON; - = standard input"),
        click.Option(["--gpus"], help=GPUS_HELP),
        click.Option(["--set", "sets"], multiple=True, help="any further field, KEY=VALUE"),
    ]
    return params + [_field_param(field) for field in run_fields()]


def _field_param(field: Field) -> click.Option:
    names = [f"--{name.replace('_', '-')}" for name in dict.fromkeys((field.short, *field.names))]
    switch = {"is_flag": False, "flag_value": "true"} if field.kind == "bool" else {}
    choices = f" [{'|'.join(field.choices)}]" if field.choices else ""
    return click.Option([*names, _key(field.path)], help=field.description + choices, type=str, **switch)  # type: ignore[arg-type]


def _key(path: str) -> str:
    return "f__" + path.replace(".", "__")


def _option_param(name: str, info: Any) -> click.Option:
    flags = [f"--{name.replace('_', '-')}", name]
    if name in ("output",):
        flags.insert(0, "-o")
    text = str(info.annotation)
    if info.annotation is bool:
        if info.default is True:
            return click.Option([f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}", name], default=None)
        return click.Option(flags, is_flag=True, help=info.description)
    many = text.startswith("tuple") or "tuple[str" in text
    return click.Option(flags, type=str, multiple=many, help=info.description)


def config_of(given: dict[str, Any]) -> dict[str, Any] | Any:
    """The run configuration of a call: the file's fields, then the flags, which win; what they overwrite is said."""
    flags = _flags(given)
    if not given.get("config"):
        return flags
    from moe_long_context.tools._tool import read_source

    base = read_source(given["config"])
    written = base.written()
    for name, value in flags.items():
        held = written.get(name)
        if held is not None and not isinstance(value, dict) and held != value:
            click.echo(f"note: {name} = {shorten(value)} from the command line replaces {shorten(held)}", err=True)
    return base.replace(**flags) if flags else base


def _flags(given: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if given.get("gpus"):
        from moe_long_context.units import parse_gpus

        out["num_gpus"], out["gpu"] = parse_gpus(given["gpus"])
    for field in run_fields():
        text = given.get(_key(field.path))
        if text is not None:
            out[field.path] = parse_text(field, text)
    for item in given.get("sets") or ():
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise BadValueError(
                f"--set takes KEY=VALUE, got {shorten(item)}.", given=item, allowed=["cp_comm_type=a2a"]
            )
        out[key.strip()] = _set_value(text)
    return out


def _set_value(text: str) -> Any:
    from moe_long_context.errors import UnreadableFileError
    from moe_long_context.yaml_safe import load_text

    try:
        return load_text(text, "--set value") if len(text) < 10_000 else text
    except UnreadableFileError:
        return text


def show(answer: Any, as_json: bool, command: str) -> None:
    """Print an answer: one JSON object, or the short tables for a person."""
    if as_json:
        print(json.dumps(answer.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":")))
        return
    if not answer.ok:
        print_error(answer.error.model_dump(), False)
        return
    from moe_long_context.adapters.render import render

    print(render(answer, command))


def print_error(error: dict[str, Any], as_json: bool, tool: str = "command") -> None:
    """One clear line on standard error, or one JSON object on standard output."""
    if as_json:
        body = {"tool": tool, "version": __version__, "ok": False, "error": error}
        print(json.dumps(body, ensure_ascii=False))
        return
    line = f"error: {error['message']}"
    allowed = [str(a) for a in error.get("allowed") or ()]
    if allowed:
        line += f" Allowed: {', '.join(allowed[:12])}{' ...' if len(allowed) > 12 else ''}."
    if error.get("fix"):
        line += f" Try: {error['fix']}."
    click.echo(line, err=True)


def main() -> None:
    """Entry point of the console command."""
    as_json = "--json" in sys.argv
    try:
        cli.main(standalone_mode=False)
    except MoeError as error:
        print_error(error.as_dict(), as_json)
        sys.exit(2)
    except click.ClickException as error:
        print_error(
            {"code": "bad_usage", "message": error.format_message(), "allowed": [], "fix": "see --help"}, as_json
        )
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        print_error(internal_error(error), as_json)
        sys.exit(3)
