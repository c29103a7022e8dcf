"""Small SVG drawings for the documents: boxes, words and arrows that follow the reader's light or dark page."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

STYLE = """
.page { fill: #ffffff; } .box { fill: #f3f5f8; stroke: #8c959f; } .ours { fill: #e6f4e1; stroke: #2e7d32; stroke-width: 1.6; }
.name { fill: #1f2328; font: bold 14px sans-serif; text-anchor: middle; } .note { fill: #424a53; font: 12px sans-serif; text-anchor: middle; }
.left { text-anchor: start; } .flow { fill: none; stroke: #0a58ca; stroke-width: 2; marker-end: url(#tip); } .tip { fill: #0a58ca; }
.word { fill: #0a58ca; font: 12px sans-serif; text-anchor: middle; }
@media (prefers-color-scheme: dark) { .page { fill: #0d1117; } .box { fill: #161b22; stroke: #6e7681; }
.ours { fill: #12261a; stroke: #57ab5a; } .name { fill: #e6edf3; } .note { fill: #b1bac4; } .flow { stroke: #6cb6ff; }
.tip, .word { fill: #6cb6ff; } }
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
    '<path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>'
)


@dataclass
class Drawing:
    """Shapes of one SVG."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box") -> None:
        """Add a box."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')

    def words(self, x: float, y: float, text: str, kind: str = "note") -> None:
        """Add text."""
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float, text: str = "") -> None:
        """Add an arrow."""
        self.parts.append(f'<path class="flow" d="M{x:g} {y:g}L{to_x:g} {to_y:g}"/>')
        if text:
            self.words((x + to_x) / 2, (y + to_y) / 2 - 6, text, "word")

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img"><title>{escape(self.title)}</title><style>{STYLE}</style>{TIP}'
        )
        page = f'<rect class="page" width="{self.width}" height="{self.height}"/>'
        return "\n".join([head, page, *self.parts, "</svg>"]) + "\n"
