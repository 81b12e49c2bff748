"""Feedback cards: one look for checks, hints and solutions, as HTML and as text.

The text says everything that the HTML says: terminals, screen readers and output comparison read it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape

COLOURS = {  # Okabe and Ito's palette: told apart by colour-blind readers; the sign says it again
    "done": ("✓", "#009e73"),
    "wrong": ("✗", "#d55e00"),
    "todo": ("○", "#888888"),
    "info": ("→", "#0072b2"),
}


@dataclass(frozen=True)
class Card:
    """A short message: a headline, labelled rows below it, and at most one block of code.

    Args:
        kind: ``done``, ``wrong``, ``todo`` or ``info``; decides sign and colour.
        headline: one line.
        rows: pairs of label and text.
        code: shown in a fixed-width block at the end.
    """

    kind: str
    headline: str
    rows: tuple[tuple[str, str], ...] = ()
    code: str = ""

    @property
    def text(self) -> str:
        sign, _ = COLOURS[self.kind]
        width = max((len(label) for label, _ in self.rows), default=0) + 1
        lines = [f"{sign} {self.headline}"]
        for label, text in self.rows:
            first, *rest = text.splitlines() or [""]
            lines.append(f"    {label + ':':<{width}} {first}".rstrip())
            lines += [" " * (width + 5) + line for line in rest]
        if self.code:
            lines += ["", *(f"    {line}".rstrip() for line in self.code.splitlines())]
        return "\n".join(lines)

    @property
    def html(self) -> str:
        sign, colour = COLOURS[self.kind]
        rows = "".join(
            f'<tr><td style="text-align:left;vertical-align:top;padding:2px 12px 2px 0;opacity:.7;'
            f'white-space:nowrap">{escape(label)}</td>'
            f'<td style="text-align:left;padding:2px 0;white-space:pre-wrap;overflow-wrap:anywhere">'
            f"{escape(text)}</td></tr>"
            for label, text in self.rows
        )
        table = f'<table style="border:none;margin:4px 0 0 0;background:none">{rows}</table>' if rows else ""
        code = f'<pre style="margin:8px 0 0 0;padding:0;overflow-x:auto">{escape(self.code)}</pre>' if self.code else ""
        return (
            f'<div style="border-left:4px solid {colour};padding:4px 12px;margin:4px 0;max-width:60em">'
            f'<span style="color:{colour};font-weight:bold">{sign}</span> '
            f"<b>{escape(self.headline)}</b>{table}{code}</div>"
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": self.html}

    def show(self) -> None:
        """Display the card in a notebook, or print its text elsewhere."""
        if in_notebook():
            from IPython.display import display

            display(self)
        else:
            print(self.text)


def in_notebook() -> bool:
    """Tell whether a Jupyter kernel runs this code, so that rich output has somewhere to go."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")
