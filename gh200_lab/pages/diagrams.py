"""Draws the documents' images from what they are images of: `--write`, or `--check`. `--screen` also photographs.

docs/packages.svg is drawn from the layers in pyproject.toml, docs/places.svg from the table of access patterns in
docs/UNIFIED_MEMORY.md, docs/ramp.png from the example in docs/RAMP.md, docs/report.png from the
page of the last quick start, and docs/web_ui.png from the page at /gh200 of a web server that shows it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from pathlib import Path

from matplotlib.figure import Figure

from simpletuner.gh200.ramp.from_config import ramp_from_config
from simpletuner.gh200.ramp.schedule import GH200GradientRamp

from ..place import ROOT
from . import screen, web_screen
from .command import DOCS
from .drawing import Drawing

COMMAND = "python -m gh200_lab.pages.diagrams --write"
CONTRACT = "simpletuner.gh200"
RAMP = "ramp.png"
ROW, GAP = 34, 12
GPU, CPU = "HBM", "Grace memory"
SCREENS = (screen, web_screen)


def layers() -> list[list[str]]:
    """The packages of simpletuner/gh200 from top to bottom, as lint-imports checks them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    found = next(each["layers"] for each in contracts if each.get("containers") == [CONTRACT])
    return [layer.replace("(", "").replace(")", "").split(" | ") for layer in found]


def packages() -> str:
    """The diagram of the packages."""
    stack = layers()
    made = Drawing(
        760,
        len(stack) * (ROW + GAP) + 56,
        "The packages of simpletuner/gh200: each imports only from layers below its own",
    )
    made.words(20, 26, "simpletuner/gh200: a package imports only from layers below its own", "name left")
    for number, names in enumerate(stack):
        y = 44 + number * (ROW + GAP)
        wide = (720 - GAP * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            x = 20 + place * (wide + GAP)
            directory = (ROOT / "simpletuner/gh200" / name).is_dir()
            made.box(x, y, wide, ROW, "ours" if directory else "box")
            made.words(x + wide / 2, y + 22, f"{name}/" if directory else name, "name")
    return made.svg()


def patterns(page: str) -> list[tuple[str, set[str], bool]]:
    """Of each access pattern: its name, where the latents live, and whether they are fetched ahead."""
    found = []
    for row in re.findall(r"^\| `(\w+)` \|(.*)\|$", page, re.MULTILINE):
        cells = [cell.strip() for cell in row[1].split("|")]
        if len(cells) != 3:
            continue
        latents = cells[0]
        places = {GPU, CPU} if "each side" in latents else {GPU} if "preferred on the GPU" in latents else {CPU}
        found.append((row[0], places, cells[2] != "no"))
    return found


def places() -> str:
    """The diagram of where tensors are."""
    found = patterns((DOCS / "UNIFIED_MEMORY.md").read_text(encoding="utf-8"))
    panel = 150
    made = Drawing(
        860, 40 + panel * len(found), "Where cache entries live for each access pattern: disk, Grace memory, HBM"
    )
    columns = {"disk": 130, CPU: 360, GPU: 650}
    for name, x in columns.items():
        made.words(x + 90, 26, name, "name")
    for number, (pattern, where, ahead) in enumerate(found):
        top = 40 + number * panel
        made.words(12, top + 60, pattern, "name left")
        for x in columns.values():
            made.box(x, top + 8, 190, panel - 22)
        made.words(225, top + 60, "cache files, always")
        made.words(225, top + 78, "written through")
        made.arrow(320, top + 66, 360, top + 66)
        made.words(340, top + 52, "once", "word")
        _entries(made, 370, top + 18, "text embeddings", "stay here")
        if CPU in where:
            read = "a copy on each side" if GPU in where else "read by the GPU from here"
            _entries(made, 370, top + 74, "latents", read)
        if GPU in where:
            _entries(made, 660, top + 74, "latents", "while there is space")
        if ahead:
            made.arrow(550, top + 98, 650, top + 98, "prefetch")
        else:
            made.arrow(650, top + 66, 550, top + 66, "reads, no copy")
    return made.svg()


def _entries(made: Drawing, x: float, y: float, name: str, note: str) -> None:
    made.box(x, y, 170, 46, "ours")
    made.words(x + 85, y + 19, name, "name")
    made.words(x + 85, y + 36, note)


def draw(ramp: GH200GradientRamp, image: Path) -> None:
    """Plot a ramp."""
    last = ramp.segments[-1].window + max(3, ramp.segments[-1].window // 8)
    steps = range(last + 1)
    samples = [ramp.micro_batches_for(step) * ramp.samples_per_micro_batch for step in steps]
    sizes = [ramp.effective_batch_size(step) for step in steps]
    figure = Figure(figsize=(9, 6), layout="constrained")
    batch, windows = figure.subplots(2, 1, sharex=True)
    batch.step(samples, sizes, where="post")
    batch.vlines(samples, 0, sizes, linewidth=0.4, alpha=0.4)
    batch.set(ylabel="effective batch size", title=ramp.describe(), ylim=(0, None))
    windows.plot(samples, steps)
    windows.set(xlabel="samples", ylabel="optimizer steps (windows)", ylim=(0, None))
    figure.savefig(image, dpi=120)


def ramp(target: Path) -> None:
    """Of the first example in docs/RAMP.md."""
    page = (DOCS / "RAMP.md").read_text(encoding="utf-8")
    example = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.json"
        config.write_text("{" + example + "}", encoding="utf-8")
        draw(ramp_from_config(config, processes=1), target)


def same_image(one: Path, other: Path) -> bool:
    """To the eye: another machine's rounding may move a pixel."""
    from PIL import Image, ImageChops, ImageStat

    if not (one.is_file() and other.is_file()):
        return False
    with Image.open(one) as first, Image.open(other) as second:
        if first.size != second.size:
            return False
        difference = ImageChops.difference(first.convert("RGB"), second.convert("RGB"))
        return max(ImageStat.Stat(difference).mean) < 0.5


def stale(directory: Path) -> list[str]:
    """The images there that are not what they are drawn from."""
    found = [
        name
        for name, text in (("packages.svg", packages()), ("places.svg", places()))
        if not (directory / name).is_file() or (directory / name).read_text(encoding="utf-8") != text
    ]
    with tempfile.TemporaryDirectory() as fresh:
        ramp(Path(fresh) / RAMP)
        found += [] if same_image(directory / RAMP, Path(fresh) / RAMP) else [RAMP]
    return found + [each.IMAGE for each in SCREENS if not each.is_current(directory / each.IMAGE)]


def main(arguments: list[str] | None = None) -> int:
    """Write or check the diagrams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="exit 1 when an image is not what it is drawn from")
    parser.add_argument(
        "--screen",
        action="store_true",
        help="write docs/report.png and docs/web_ui.png too; needs chromium and a quick start",
    )
    parser.add_argument("--into", type=Path, default=DOCS, help="directory of the images")
    options = parser.parse_args(arguments)
    if options.check:
        found = stale(options.into)
        if found:
            print(f"not what they are drawn from: {', '.join(found)}\n  fix: {COMMAND} --screen", file=sys.stderr)
        return 1 if found else 0
    (options.into / "packages.svg").write_text(packages(), encoding="utf-8")
    (options.into / "places.svg").write_text(places(), encoding="utf-8")
    ramp(options.into / RAMP)
    return max(each.photograph(options.into / each.IMAGE) for each in SCREENS) if options.screen else 0


if __name__ == "__main__":
    sys.exit(main())
