"""Writes the figures down: for a terminal, as a page and as a plot."""

from __future__ import annotations

from typing import Any


def check(mine: dict[str, float], theirs: list[dict[str, float]]) -> dict[str, list[float]]:
    """Return for each measure the real value, and between which two 95 % of the simulated ones lie."""
    found = {}
    for name, value in mine.items():
        ordered = sorted(twin[name] for twin in theirs)
        edge = round(0.025 * len(ordered))
        found[name] = [value, ordered[edge], ordered[-1 - edge]]
    return found


def lines(found: dict[str, Any]) -> list[str]:
    if found["mode"] == "simulate":
        out = []
        for name, world in found["worlds"].items():
            out += [f"{name}: {world['seconds']:.0f} s"]
            out += [f"  {_row(rule, one)}" for rule, one in world["rules"].items()]
        return out
    out = [
        f"{found['figures']['deaths']} whole workers in {found['seconds']:.0f} s,"
        f" {found['late']:.0f} s of them waited for the machine; {found['pace']}",
        f"  {_row(found['rule'], found['figures'])}",
        "  the counting rules, asked about the same history:",
    ]
    out += [f"  {_row(rule, one)}" for rule, one in found["same_history"].items()]
    for name, (value, low, high) in found["check"].items():
        inside = "" if low <= value <= high else "   OUTSIDE"
        out.append(f"  {name:<52} {value:8.3f}   simulated {low:8.3f} to {high:8.3f}{inside}")
    out += [f"  ! {complaint}" for complaint in found["complaints"]]
    return out


def _row(rule: str, one: dict[str, float]) -> str:
    return (
        f"{rule:<18} deaths {one['deaths']}, poisons {one['caught']}/{one['poisons']}"
        f" after {one['until_caught']:.2f} (at most {one['worst']}), workers each {one['workers_lost']:.2f},"
        f" innocents {one['convicted']}/{one['exposed']} <= {one['bound']:.2%}, lost {one['lost']:.1%},"
        f" cleared {one['clear_p50']:.1f}/{one['clear_p99']:.1f} s, unfinished {one['unfinished']}"
    )


def page(found: list[dict[str, Any]]) -> str:
    raise NotImplementedError


def plot(found: list[dict[str, Any]]) -> str:
    raise NotImplementedError
