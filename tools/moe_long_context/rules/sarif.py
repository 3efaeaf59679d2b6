"""Findings as a SARIF 2.1.0 log, so that a review bot can annotate a configuration in a pull request."""

from __future__ import annotations

from typing import Any

from moe_long_context._version import VERSION
from moe_long_context.results import Finding

LEVELS = {"error": "error", "warning": "warning", "info": "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_log(findings: tuple[Finding, ...], uri: str = "run.yaml") -> dict[str, Any]:
    """One SARIF run over one configuration file."""
    rules = [
        {"id": f.rule, "shortDescription": {"text": f.rule.replace("-", " ")}, "help": {"text": f.fix or f.message}}
        for f in {f.rule: f for f in findings}.values()
    ]
    results = [
        {
            "ruleId": f.rule,
            "level": LEVELS[f.severity],
            "message": {"text": f"{f.message}. Fix: {f.fix}" if f.fix else f.message},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}}],
        }
        for f in findings
    ]
    driver = {"name": "moe-long-context", "version": VERSION, "rules": rules}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
