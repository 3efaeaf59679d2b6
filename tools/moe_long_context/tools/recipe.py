"""`emit_recipe`: a runnable recipe from a run configuration, in the frameworks' own forms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from moe_long_context.config.formats.migrations import written_migrations
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import InvalidLayoutError
from moe_long_context.recipes.emitted import Emitted, write_files
from moe_long_context.recipes.environment import bridge_env
from moe_long_context.recipes.releases import NEWEST
from moe_long_context.recipes.settings import bridge_settings
from moe_long_context.recipes.writers import WRITERS, smoke
from moe_long_context.results import Evidence, Finding, Frozen
from moe_long_context.rules import check
from moe_long_context.tools._tool import Draft, Options, tool

ADDED = (
    "model.pipeline_model_parallel_layout",
    "rerun_state_machine.check_for_nan_in_loss",
    "model.calculate_per_token_loss",
    "ddp.average_in_collective",
)
Format = Literal["bridge-python", "bridge-overrides", "megatron-lm", "slurm", "nemo-run", "verl", "slime"]


class RecipeOptions(Options):
    """Options of `emit_recipe`."""

    format: Format = Field(default="bridge-python", description="form of the recipe")
    smoke: bool = Field(default=False, description="a scaled-down twin: same structure, few narrow layers, one device")
    output: str | None = Field(default=None, max_length=4096, description="folder to write the files to")
    force: bool = Field(default=False, description="overwrite files that exist")
    allow_errors: bool = Field(default=False, description="emit although the framework would refuse the run")


class RecipeFile(Frozen):
    """One file of a recipe."""

    path: str
    text: str


class Override(Frozen):
    """One framework field that the recipe sets."""

    field: str
    value: object = None
    effect: Literal["execution-only", "convergence-changing"]
    why: str = ""


class MigrationNote(Frozen):
    """A field emitted in a newer spelling than it was written in."""

    written: str
    emitted: str
    why: str


class RecipeResult(Frozen):
    """The files, how to launch them, and every field they set."""

    format: str
    files: tuple[RecipeFile, ...]
    launch: str
    written: tuple[str, ...] = Field(default=(), description="paths written to disk")
    overrides: tuple[Override, ...]
    migrations: tuple[MigrationNote, ...]


@tool("recipe", RecipeOptions, RecipeResult)
def emit_recipe(config: RunConfig, options: RecipeOptions) -> Draft:
    """Write a runnable Megatron Bridge, Megatron-LM, Slurm, NeMo-Run, verl or slime recipe of a run."""
    run = resolve(config)
    findings = _checked(as_emitted(run), options.allow_errors)
    emitted = smoke(run) if options.smoke else WRITERS[options.format](run)
    written = write_files(emitted.files, options.output, options.force) if options.output else []
    return Draft(
        result=_result(run, emitted, "bridge-python" if options.smoke else options.format, written),
        findings=findings,
        assumptions=(*run.assumptions, *emitted.notes, *_target(run), *_extension(emitted)),
        evidence=(Evidence(what="accepted field names", basis="exact", source="Megatron Bridge 0.6.2 config classes"),),
    )


def _result(run: Run, emitted: Emitted, name: str, written: list[str]) -> RecipeResult:
    return RecipeResult(
        format=name,
        files=tuple(RecipeFile(path=path, text=text) for path, text in emitted.files.items()),
        launch=emitted.launch,
        written=tuple(written),
        overrides=tuple(Override(field=s.path, value=s.value, effect=s.effect, why=s.why) for s in emitted.settings),
        migrations=tuple(MigrationNote(**m._asdict()) for m in written_migrations(run.written)),
    )


def _target(run: Run) -> tuple[str, ...]:
    """A note where another release was asked for than the one that is written."""
    wanted = run.written.versions.megatron_bridge
    if wanted in (None, NEWEST):
        return ()
    return (f"emitted in the spelling of Megatron Bridge {NEWEST}, not {wanted}: names of other releases may differ",)


def _extension(emitted: Emitted) -> tuple[str, ...]:
    """Position settings that the recipe adds because the run is longer than the trained context."""
    reasons = dict.fromkeys(s.why for s in emitted.settings if s.why.startswith("YaRN from"))
    return tuple(f"{reason} (changes convergence: the model has to be trained through it)" for reason in reasons)


def as_emitted(run: Run) -> Run:
    """The run with what every recipe adds by itself: environment, a balanced layout, what graphs and packing need."""
    added = {s.path: s.value for s in bridge_settings(run) if s.path in ADDED and s.value is not None}
    return resolve(run.written.replace(**added, env=bridge_env(run)))


def _checked(run: Run, allow_errors: bool) -> tuple[Finding, ...]:
    """Findings of the rules on the run.

    Raises:
        InvalidLayoutError: a finding of severity error, unless errors are allowed.
    """
    findings = tuple(check(run))
    errors = [f for f in findings if f.severity == "error"]
    if errors and not allow_errors:
        raise InvalidLayoutError(
            f"The framework would refuse this run: {errors[0].message}",
            given=", ".join(errors[0].fields),
            allowed=[f.rule for f in errors],
            fix=errors[0].fix or "see `validate`; `allow_errors` emits it nevertheless",
        )
    return findings
