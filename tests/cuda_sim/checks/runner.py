"""Runs every check_* function of a file in this one process and prints, as JSON, how each ended."""

from __future__ import annotations

import json
import runpy
import sys
import traceback


def main() -> None:
    checks = {n: f for n, f in runpy.run_path(sys.argv[1]).items() if n.startswith("check_")}
    ended = {}
    for name, check in checks.items():
        try:
            check()
            ended[name] = ""
        except BaseException:
            ended[name] = traceback.format_exc()
    print("ENDED " + json.dumps(ended), flush=True)


if __name__ == "__main__":
    main()
