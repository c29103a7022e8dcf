"""A small captioned image set, drawn the same on every machine, in several aspect ratios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

ASPECTS = ((64, 64), (128, 64), (64, 128), (192, 64))
COLOURS = {"red": (200, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 200), "yellow": (215, 190, 40)}
SHAPES = ("disc", "box", "triangle")


def make_images(
    directory: Path, per_aspect: int = 6, aspects: Sequence[tuple[int, int]] = ASPECTS, first: int = 0
) -> None:
    """Write the images and captions that are missing; what is there is left alone."""
    from PIL import Image, ImageDraw

    directory.mkdir(parents=True, exist_ok=True)
    number = first
    for width, height in aspects:
        for _ in range(per_aspect):
            colour = list(COLOURS)[number % len(COLOURS)]
            shape = SHAPES[number % len(SHAPES)]
            image = Image.new("RGB", (width, height), (10 * (number % 20), 90, 140))
            _draw(ImageDraw.Draw(image), shape, COLOURS[colour], width, height, number)
            target = directory / f"sample_{number:03d}.png"
            if not target.exists():
                # The losses that tests/golden recorded depend on these captions.
                target.with_suffix(".txt").write_text(f"a {colour} {shape}, picture {number}", encoding="utf-8")
                image.save(target)
            number += 1


def _draw(pen: Any, shape: str, colour: tuple[int, int, int], width: int, height: int, number: int) -> None:
    left, top = width // 8 + number % 7, height // 8
    right, bottom = width * 3 // 4, height * 3 // 4
    if shape == "disc":
        pen.ellipse((left, top, right, bottom), fill=colour)
    elif shape == "box":
        pen.rectangle((left, top, right, bottom), fill=colour)
    else:
        pen.polygon(((left, bottom), (right, bottom), ((left + right) // 2, top)), fill=colour)
