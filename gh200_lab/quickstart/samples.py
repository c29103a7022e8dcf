"""The image the model made before training and the one it made after, from upstream's list of validation media."""

from __future__ import annotations

from pathlib import Path

from ..tiny.run import read_lines

MEDIA = "validation_media.jsonl"
REPORT = "training_report.html"
# Upstream's tracker of that name, and with it the media, came with this module.
TRACKER = Path("simpletuner/helpers/training/local_metrics.py")
ENLARGED = 256
GAP = 16


def before_and_after(output: Path) -> tuple[Path, Path] | None:
    """The same prompt at the first and at the last step there is one of; None where there are not two."""
    made = [record for record in read_lines(output / MEDIA) if record["type"] == "image"]
    last = max((record["step"] for record in made), default=0)
    after = next((record for record in made if record["step"] == last), None)
    before = next((record for record in made if after and record["label"] == after["label"]), None)
    if after is None or before is None or before["step"] == last:
        return None
    return output / before["path"], output / after["path"]


def without_caption(source: Path, resolution: tuple[int, int], target: Path) -> Path:
    """Upstream writes the prompt into a strip below the image."""
    from PIL import Image

    with Image.open(source) as image:
        image.convert("RGB").crop((0, 0, min(resolution[0], image.width), min(resolution[1], image.height))).save(
            target
        )
    return target


def side_by_side(before: Path, after: Path, target: Path) -> Path:
    """One image of both."""
    from PIL import Image

    sheet = Image.new("RGB", (2 * ENLARGED + GAP, ENLARGED), "white")
    for place, path in ((0, before), (ENLARGED + GAP, after)):
        with Image.open(path) as image:
            sheet.paste(image.resize((ENLARGED, ENLARGED), Image.Resampling.NEAREST), (place, 0))
    sheet.save(target)
    return target
