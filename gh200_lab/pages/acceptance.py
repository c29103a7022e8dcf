"""The part of docs/DIAGNOSTIC.md about the acceptance run, and its report's JSON schema, from the claims themselves."""

from __future__ import annotations

from typing import Any

from simpletuner.gh200.cli.accept import REPORT
from simpletuner.gh200.diagnostic.acceptance.claims import CLAIMS, VERDICTS, Answer, Claim
from simpletuner.gh200.diagnostic.acceptance.trainings import Trained
from simpletuner.gh200.diagnostic.facts import Facts
from simpletuner.gh200.diagnostic.output import SCHEMA_VERSION

from .json_schema import counted, define, define_facts, report_schema

SCHEMA_FILE = "gh200_acceptance.schema.json"
PAGE = f"""
## The acceptance run

```bash
.venv/bin/python gh200_diagnostic.py --acceptance                              # ten minutes, {REPORT}
.venv/bin/python gh200_diagnostic.py --acceptance --large --output FILE        # also a model larger than HBM: an hour
```

What an owner of a real machine runs once. It tries every claim below on GPU 0 of those CUDA sees, prints one page with
what is expected beside what was seen, and writes one file to send back, which `docs/{SCHEMA_FILE}` describes. A
claim is **shown**, **refuted** or **not tested**, with the reason.

- It asks first. A GPU that others use (their processes, more than a tenth of HBM in use, or busy for more than a tenth of
  the time) is left alone, and so is one on which another acceptance run is at work: exit code 3, nothing was tried. A test
  takes at most a quarter of what GPU and host have free; only the allocation beyond HBM takes more, as in the plain
  diagnostic, and one test fills HBM with plain memory for a moment.
- `--minutes` (10; with `--large` 60) bounds the parts that take long: bandwidth, moving a batch, scale, trainings. What was
  cut is not tested.
- Ctrl-C and SIGTERM stop it: what was seen by then is written, the exit code is 130 or 143. Killed outright, it leaves no
  process, no memory and no directory.
- The trainings are real ones of a tiny model in the fork, in a directory under `TMPDIR` that is removed. Stock is first;
  then plain memory fills HBM until stock fails, and the same training runs in managed memory; then one with
  everything on, the ramp too, whose windows stock was given by hand. They use kernels that add in a fixed order. Where
  two stock trainings differ by themselves, nothing is judged.
- Speeds are judged on a GH200 only; elsewhere they are shown. Without a GPU every claim is not tested, the page says what is
  missing, and the exit code is 3.
- Exit code 0: nothing was refuted. 1: something was. 2: the command line or the output file cannot be used.

| claim | part | what we say |
| --- | --- | --- |
"""


def page() -> str:
    """The part of DIAGNOSTIC.md about acceptance."""
    return PAGE + "".join(f"| `{claim.id}` | {claim.part} | {claim.text} |\n" for claim in CLAIMS)


def schema() -> dict[str, Any]:
    """The JSON schema of its report."""
    found: dict[str, Any] = {}
    define_facts(Facts, found)
    for kind in (Claim, Answer, Trained):
        define(kind, found)
    claim, answer = found["Claim"], found.pop("Answer")
    del answer["properties"]["claim"]
    claim["properties"] |= answer["properties"]
    claim["required"] += [name for name in answer["required"] if name != "claim"]
    claim["properties"] |= {"id": {"enum": [one.id for one in CLAIMS]}, "verdict": {"enum": list(VERDICTS)}}
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "created": {"type": "string", "format": "date-time"},
        "arguments": {"type": "array", "items": {"type": "string"}},
        "minutes": {"type": "number"},
        "seconds": {"type": "number"},
        "ended": {"type": "string"},
        "facts": {"$ref": "#/$defs/Facts"},
        "claims": {"type": "array", "items": {"$ref": "#/$defs/Claim"}},
        "trainings": {"type": "array", "items": {"$ref": "#/$defs/Trained"}},
        "summary": counted(VERDICTS, {"type": "integer"}),
    }
    return report_schema("Report of gh200_diagnostic.py --acceptance", properties, found)
