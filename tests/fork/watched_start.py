"""Runs a driver of trainings and watches the start before the first batch: who writes which file, and deaths on the way.

What to do comes as JSON in WATCHED_START: `notes` (file to write), `kill` (SIGKILL so many seconds `after` the first event of
Python's audit hooks with this name, `on`, whose arguments have the words `of` in them; without a name, after the beginning), `hold`
(at such an event the process waits for so many `seconds`).
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import Accelerator

VARIABLE = "WATCHED_START"
# Whole files are put in their place by a rename, ours and upstream's.
PUT = "os.rename"


class Start:
    def __init__(self, orders: dict[str, Any]) -> None:
        self._notes, self._kill, self._hold = orders["notes"], orders.get("kill"), orders.get("hold")
        self._begun = False

    def install(self) -> None:
        if self._kill and "on" not in self._kill:
            self._die()
        sys.addaudithook(self._happened)
        Accelerator.accumulate = self._first(Accelerator.accumulate)

    def _happened(self, event: str, given: tuple[Any, ...]) -> None:
        if self._kill and _is_meant(self._kill, event, given):
            self._die()
        if self._hold and _is_meant(self._hold, event, given):
            seconds, self._hold = self._hold["seconds"], None
            time.sleep(seconds)
        if event == PUT:
            self._note(put=os.path.basename(os.fsdecode(given[1])))

    def _die(self) -> None:
        """At once and not by a timer where no time is named: what comes next must not happen."""
        order, self._kill = self._kill or {}, None
        after = order.get("after", 0)
        if not after:
            os.kill(os.getpid(), signal.SIGKILL)
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()

    def _first(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Before the first micro-batch each dataset is noted: how its metadata is held, how many entries of it are still unread, how
        many captions were gone through, and which listings nobody has looked into."""

        def accumulate(accelerator: Any, *models: Any) -> Any:
            if not self._begun:
                self._begun = True
                self._note_datasets()
            return plain(accelerator, *models)

        return accumulate

    def _note_datasets(self) -> None:
        from simpletuner.helpers.training.state_tracker import StateTracker

        for name, made in StateTracker.get_data_backends().items():
            if "metadata_backend" in made:
                held = made["metadata_backend"].image_metadata
                unread = sum(type(entry) is int for entry in dict.values(held))
                records = made["text_embed_cache"].prompt_records
                captions = sum(record["metadata"].get("data_backend_id") == name for record in records)
                listings = {
                    "pictures": StateTracker.all_image_files.get(name),
                    "latents": StateTracker.all_vae_cache_files.get(name),
                    "names": made["vaecache"].image_path_to_vae_path,
                }
                late = [what for what, listing in listings.items() if getattr(listing, "pending", False)]
                self._note(dataset=name, held=type(held).__name__, unread=unread, captions=captions, late=late)

    def _note(self, **entry: Any) -> None:
        with open(self._notes, "a", encoding="utf-8") as notes:
            notes.write(json.dumps({"rank": int(os.environ.get("RANK", "0")), **entry}) + "\n")


def _is_meant(order: dict[str, Any], event: str, given: tuple[Any, ...]) -> bool:
    return event == order.get("on") and order["of"] in repr(given)


def main() -> None:
    Start(json.loads(os.environ[VARIABLE])).install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
