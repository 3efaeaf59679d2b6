"""Rule pages for people, made from the rules: `python -m moe_long_context.rules.pages --write DIR | --check DIR`."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import yaml

from moe_long_context.rules.registry import all_rules
from moe_long_context.rules.rule import Rule

MAX_LINES = 190


def rule_page(rule: Rule) -> str:
    """One rule as Markdown."""
    example = yaml.safe_dump({k: v for k, v in rule.fails.items() if k != "base"}, default_flow_style=True, width=200)
    lines = [
        f"### {rule.id}",
        f"{rule.severity}{' (an error for some runs)' if rule.escalates else ''}: {rule.title}. {rule.why}",
        f"- Fix: {rule.fix}",
        f"- Fails: {rule.where}; versions: {rule.versions}; front ends: {', '.join(rule.frontends)}",
        f"- Fields: {', '.join(f'`{f}`' for f in rule.fields)}",
        f"- Example that breaks it: `{example.strip()}`",
        f"- Source: {rule.source}",
    ]
    if rule.repair:
        lines.append(f"- `validate --fix` repairs it: {rule.effect}")
    if rule.correction:
        lines.append(f"- Correction: {rule.correction}")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """File name -> Markdown; a family of many rules is split into numbered pages."""
    families: dict[str, list[Rule]] = defaultdict(list)
    for rule in all_rules().values():
        families[rule.family].append(rule)
    out: dict[str, str] = {}
    for family, rules in sorted(families.items()):
        for number, text in enumerate(_split(family, rules), 1):
            out[f"{family}{'' if number == 1 else f'-{number}'}.md"] = text
    return out


def _split(family: str, rules: list[Rule]) -> list[str]:
    head = f"# Rules: {family.replace('-', ' ')}\n\nGenerated from the code; do not edit.\n"
    chunks, lines = [head], head.count("\n")
    for rule in rules:
        page = "\n" + rule_page(rule) + "\n"
        if lines + page.count("\n") > MAX_LINES:
            chunks.append(head)
            lines = head.count("\n")
        chunks[-1] += page
        lines += page.count("\n")
    return chunks


def main(arguments: list[str]) -> int:
    """Write the pages, or check that they are current (exit 1 and the names of stale pages)."""
    mode, folder = arguments[0], Path(arguments[1])
    wanted = pages()
    if mode == "--write":
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.md"):
            if old.name not in wanted:
                old.unlink()
        for name, text in wanted.items():
            (folder / name).write_text(text, encoding="utf-8")
        return 0
    stale = [
        n
        for n, text in wanted.items()
        if not (folder / n).is_file() or (folder / n).read_text(encoding="utf-8") != text
    ]
    extra = [f.name for f in folder.glob("*.md") if f.name not in wanted]
    if stale or extra:
        print(f"stale: {stale} extra: {extra}; run: python -m moe_long_context.rules.pages --write {folder}")
    return 1 if stale or extra else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
