"""Reads run_config.yaml as Bridge dumps it: one mapping for each section, classes and enums as `_target_` entries."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.formats.bridge_fields import run_from_fields
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError

SECTION_TARGET = "_target_"


def is_dump(data: Any) -> bool:
    """Whether parsed YAML is a dumped ConfigContainer."""
    if not isinstance(data, dict):
        return False
    target = str(data.get(SECTION_TARGET, ""))
    sections = [data.get(name) for name in ("model", "train", "optimizer", "ddp")]
    return target.endswith("ConfigContainer") or sum(isinstance(s, dict) and SECTION_TARGET in s for s in sections) >= 2


def read_dump(data: dict[str, Any]) -> RunConfig:
    """A run configuration from a dumped ConfigContainer.

    Raises:
        InputError: values that cannot be a run.
    """
    model = data.get("model")
    if not isinstance(model, dict):
        raise BadValueError("The dump has no model section.", fix="pass the whole run_config.yaml")
    fields: dict[str, Any] = {}
    for section, values in data.items():
        if section == SECTION_TARGET:
            continue
        if section in ("env_vars", "mixed_precision") and not _is_section(values):
            fields[str(section)] = values
        elif isinstance(values, dict):
            fields.update(_section(str(section), values))
    _parallel_lists(fields)
    return run_from_fields(fields)


def _is_section(values: Any) -> bool:
    return isinstance(values, dict) and SECTION_TARGET in values


def _section(section: str, values: dict[str, Any]) -> dict[str, Any]:
    out = {f"{section}.{name}": plain(value) for name, value in values.items() if name != SECTION_TARGET}
    if section == "peft":
        out["peft._target_"] = values.get(SECTION_TARGET)
    return out


def plain(value: Any) -> Any:
    """Enums and types by name; a callable stays a mapping, which the caller reports."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, dict) or SECTION_TARGET not in value:
        return value
    target = str(value[SECTION_TARGET])
    if "_name_" in value:
        return str(value["_name_"])
    if value.get("_call_") is False:
        return target if target.startswith("torch.") and target.count(".") == 1 else target.rsplit(".", 1)[-1]
    return value


def _parallel_lists(fields: dict[str, Any]) -> None:
    """A layout object is dumped by its stages; the string form is what people wrote."""
    layout = fields.get("model.pipeline_model_parallel_layout")
    if isinstance(layout, dict):
        fields["model.pipeline_model_parallel_layout"] = layout.get("layout") or layout.get("input_data")
