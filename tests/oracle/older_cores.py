"""The random configurations against the config classes of older cores: `older_cores.py FOLDER [--write]`.

FOLDER holds one unpacked megatron-core wheel for each release, FOLDER/0.14.0 to FOLDER/0.18.0 (`pip download --no-deps
megatron-core==0.18.0`, then unzip). Not a part of `check.py`: old releases do not change, their record is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RELEASES = ("0.14.0", "0.15.0", "0.16.1", "0.17.0", "0.18.0")
CASES = 6000
RECORD = Path(__file__).resolve().parents[1] / "golden" / "configs_older_cores.json"


def one_release(folder: Path, release: str) -> dict[str, Any]:
    """Accept (1) or refuse (0) of each case by one release, and the cases that the rules judge otherwise."""
    sys.path.insert(0, str(folder / release))
    import _env

    _env.pretend_te()
    import config_cases
    from _config_class import outcome

    accepted, wrong = "", {}
    for index in range(CASES):
        run = config_cases.case(index, release)
        said, rules = outcome(run), config_cases.refused_by(run)
        accepted += str(int(said == "ok"))
        if (said == "ok") == bool(rules):
            wrong[str(index)] = {"framework": said, "rules": rules}
    return {"disagreements": len(wrong), "cases": wrong, "refused": accepted.count("0"), "accepted": accepted}


def main(arguments: list[str]) -> int:
    """Record every release, each in its own process; 1 when the kept record differs."""
    folder = Path(arguments[0]).resolve()
    if len(arguments) == 3 and arguments[1] == "--release":
        print(json.dumps(one_release(folder, arguments[2])))
        return 0
    found = {}
    for release in RELEASES:
        command = [sys.executable, "-W", "ignore", __file__, str(folder), "--release", release]
        found[release] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        counts = found[release]
        print(f"{release}: {counts['refused']} of {CASES} refused, {counts['disagreements']} disagreements")
    text = json.dumps({"tried": CASES, "releases": found}, indent=1) + "\n"
    if "--write" in arguments:
        RECORD.write_text(text, encoding="utf-8")
    return int(not RECORD.is_file() or RECORD.read_text(encoding="utf-8") != text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
