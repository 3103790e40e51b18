"""Parts of a whole as words."""

from __future__ import annotations


def percent(part: float) -> str:
    """`38%`."""
    return "<1%" if 0 < part < 0.005 else f"{100 * part:.0f}%"
