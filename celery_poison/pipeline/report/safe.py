"""Foreign words on the page: harmless, and never wider than their place."""

from __future__ import annotations

from html import escape
from unicodedata import east_asian_width

from celery_poison.text import clean

#: Pixels of a character of 12 px, generously: most, capital letters, and those that are widest.
_USUAL, _CAPITAL, _WIDEST = 7.4, 9.6, 13.0


def safe(words: object) -> str:
    """Return words as HTML shows them; control characters, and those that turn the direction, as escapes."""
    return escape(clean(words))


def shorten(words: str, room: float) -> str:
    """Return as much of the words as fits into ``room`` pixels, with dots for the rest."""
    shown, width = clean(words), 0.0
    for n, character in enumerate(shown):
        width += _width(character)
        if width > room:
            return shown[: max(0, n - 2)] + "…"
    return shown


def _width(character: str) -> float:
    if character in "WM@%mw" or east_asian_width(character) in "WF":
        return _WIDEST
    return _CAPITAL if character.isupper() else _USUAL
