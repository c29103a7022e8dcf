"""One run at a time in an output folder: two would take turns at the same checkpoints, and each resume from the other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ..datasets.meeting import meeting_file
from ..errors import GH200Error

NAME = ".simpletuner-gh200-run"
_TRIES = 3


def claim_output(folder: object, environ: Mapping[str, str]) -> Callable[[], None]:
    """Until what it returns is called, or the process ends. The first rank claims it for all."""
    if not folder or not isinstance(folder, str) or environ.get("RANK", "0") != "0":
        return _nothing
    place = Path(folder).expanduser().absolute()
    try:
        place.mkdir(parents=True, exist_ok=True)
        file = meeting_file(place / NAME)
        # The run before may remove the file while it is opened here.
        if not any(file.claim(shared=False) for _ in range(_TRIES)):
            raise _another(place, file.holder())
    except OSError as error:
        if not place.is_dir():
            raise GH200Error(
                "The output folder cannot be made.",
                where=f"output_dir {place}",
                why=str(error.strerror or error),
                fix="name another output_dir",
            ) from error
        # A file system without locks, or a folder of somebody else: nothing can be told, and upstream says the rest.
        return _nothing

    def let_go() -> None:
        file.let_go()
        file.remove_if_last()

    return let_go


def _nothing() -> None:
    return None


def _another(place: Path, holder: int | None) -> GH200Error:
    return GH200Error(
        "Another run is at work in this output folder.",
        where=f"output_dir {place}",
        why=f"process {holder} holds it" if holder else "it was taken this moment",
        fix="wait for it, end it, or give this run another output_dir",
    )
