"""Pictures, as SVG text: every word in them is escaped, every picture says what it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, log1p, log10
from typing import Any

from celery_poison.pipeline.report.safe import safe, shorten

WIDTH = 860


def picture(title: str, height: float, *parts: str) -> str:
    """Return one SVG with a title for those who cannot see it."""
    inside = "".join(parts)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{safe(title)}">'
        f"<title>{safe(title)}</title>{inside}</svg>"
    )


def text(x: float, y: float, words: object, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{safe(str(words))}</text>'


def box(x: float, y: float, wide: float, high: float, kind: str, hint: str, shade: float = 1.0) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{max(wide, 0):.1f}" height="{max(high, 0):.1f}"'
    return f'<rect {shape} class="{kind}" fill-opacity="{shade:.2f}"><title>{safe(hint)}</title></rect>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def dot(x: float, y: float, size: float, kind: str, hint: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" class="{kind}"><title>{safe(hint)}</title></circle>'


def stacked(title: str, days: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Bars for each day, one series upon the other; the names of the series are their classes."""
    ticks = _ticks(max([sum(values[n] for values in series.values()) for n in range(len(days))], default=0))
    left, high, top = 46.0, 170.0, ticks[-1]
    step = (WIDTH - left) / max(1, len(days))
    parts = _scale(left, high, ticks)
    for n, day in enumerate(days):
        under = high
        for name, values in series.items():
            tall = values[n] / top * (high - _ROOM)
            under -= tall
            parts.append(
                box(left + n * step + 1, under, step - 2, tall, name, f"{day}: {values[n]:g} {name}")
            )
    parts += _dates(days, lambda n: left + (n + 0.5) * step, high + 16)
    return picture(title, high + 24, *parts, *_legend(left, series))


def ranking(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line for each element: deaths by expected ones, with their interval, logarithmic."""
    left, right, row = 300.0, WIDTH - 130.0, 22.0
    most = max([_finite(each["times"]) for each in rows], default=1.0)
    least, decades = 0.1, max(2, ceil(log10(most)) + 1)

    def x(times: float) -> float:
        part = log10(min(max(times, least), 10**decades * least) / least) / decades
        return left + (right - left) * part

    high = 22 + row * len(rows)
    parts = []
    for n in range(decades + 1):
        power = least * 10**n
        parts += [line(x(power), 16, x(power), high, "axis" if n == 1 else "grid")]
        parts += [text(x(power), 12, f"{power:g}×", "small", "middle")]
    parts.append(text(WIDTH - 4, 12, "deaths / expected", "small", "end"))
    for n, each in enumerate(rows):
        y = 30 + n * row
        times, low, upper = (_finite(each[name]) for name in ("times", "low", "high"))
        whole = f"{each['key']}: {each['says']}"
        parts += [
            text(left - 8, y + 4, shorten(str(each["key"]), left - 12), each["standing"], "end"),
            box(x(low), y - 4, x(upper) - x(low), 8, "interval", whole),
            dot(x(times), y, 4.5, each["standing"], whole),
            text(right + 12, y + 4, f"{each['deaths']:.4g} / {each['expected']:.2g}", "small"),
        ]
    return picture(title, high + 8, *parts)


def _finite(value: Any) -> float:
    """Return a number that can be drawn; JSON has infinity as text."""
    return min(float(value), 1e6)


def heat(title: str, names: Sequence[str], value: Callable[[str, int], float]) -> str:
    """Tasks down, hours of the day across; the more, the darker."""
    left, row = 190.0, 20.0
    step = (WIDTH - left) / 24
    top = max([value(name, hour) for name in names for hour in range(24)], default=0) or 1
    parts = [text(left + hour * step, 12, f"{hour:02}", "small") for hour in range(24)]
    for n, name in enumerate(names):
        parts.append(text(left - 8, 31 + n * row, shorten(name, left - 12), "", "end"))
        for hour in range(24):
            found = value(name, hour)
            hint = f"{name}, {hour:02}:00 UTC: {found:g} deaths"
            # One death is to be seen, whatever the most of them is.
            shade = 0.12 + 0.88 * found / top if found else 0.35
            kind = "hot" if found else "cold"
            parts.append(box(left + hour * step, 18 + n * row, step - 2, row - 2, kind, hint, shade))
    return picture(title, 24 + row * len(names), *parts)


def lines(title: str, days: Sequence[str], series: Mapping[str, Sequence[float]], unit: str) -> str:
    """One curve for each series over days."""
    ticks = _ticks(max([value for values in series.values() for value in values], default=0))
    left, high, top = 60.0, 170.0, ticks[-1]
    step = (WIDTH - left - 30) / max(1, len(days) - 1)
    parts = _scale(left, high, ticks)
    for name, values in series.items():
        points = [
            (left + 15 + m * step, high - value / top * (high - _ROOM)) for m, value in enumerate(values)
        ]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" class="curve {name}"/>')
        hints = (f"{day}: {name} {value:g} {unit}" for day, value in zip(days, values, strict=True))
        parts += [dot(a, b, 3, name, hint) for (a, b), hint in zip(points, hints, strict=True)]
    parts += _dates(days, lambda n: left + 15 + n * step, high + 16)
    return picture(title, high + 24, *parts, *_legend(left, series))


def tradeoff(title: str, rows: Sequence[Mapping[str, Any]], best: str, now: str) -> str:
    """Each policy a dot: deaths across, innocents up; the best possible ones joined by a line.

    Args:
        best, now: what the recommended policy, and the one of today, are called; both are named.
    """
    left, high, right = 60.0, 300.0, WIDTH - 20.0
    across = _ticks(max([row["deaths"] for row in rows], default=0))
    most_wrong = max([row["innocents"] for row in rows], default=0) or 1

    def up(innocents: float) -> float:
        # By magnitude, since a few policies are far worse than all others.
        return high - log1p(innocents) / log1p(most_wrong) * (high - 40)

    def place(row: Mapping[str, Any]) -> tuple[float, float]:
        return left + row["deaths"] / across[-1] * (right - left - 20), up(row["innocents"])

    parts = [line(left, 20, left, high, "axis"), text(left + 6, 14, "innocents in quarantine", "small")]
    for tick in across:
        x = left + tick / across[-1] * (right - left - 20)
        parts.append(text(x, high + 18, f"{tick:,}", "small", "middle"))
    parts.append(text(right, high + 34, "deaths", "small", "end"))
    for tick in [0, *(10**power for power in range(1 + int(log10(most_wrong))))]:
        parts += [
            line(left, up(tick), right, up(tick), "grid" if tick else "axis"),
            text(left - 6, up(tick) + 4, f"{tick:,}", "small", "end"),
        ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, _front(rows)))
    parts.append(f'<polyline points="{path}" class="curve front"/>')
    for row in rows:
        parts += _policy(row, *place(row), best, now)
    return picture(title, high + 40, *parts)


def _policy(row: Mapping[str, Any], x: float, y: float, best: str, now: str) -> list[str]:
    says = row["says"]
    kind = "best" if says == best else "tried" if row["policy"].get("trial", True) else "untried"
    told = f"{says}: {row['deaths']} deaths, {row['innocents']} innocents, {row['waiting']} waiting"
    named = [text(x, y - 12, says if says == now else "recommended", "named", "middle")]
    return [dot(x, y, 8 if kind == "best" else 5, kind, told), *(named if says in (best, now) else [])]


def _front(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["deaths"], row["innocents"])):
        if not found or row["innocents"] < found[-1]["innocents"]:
            found.append(row)
    return found


#: Above the highest bar: the legend.
_ROOM = 24.0


def _ticks(most: float) -> list[int]:
    """Return round numbers from 0 up to ``most`` or more, about four."""
    size = 10 ** max(0, ceil(log10(most)) - 1) if most > 1 else 1
    step = next(step for step in (size // 2, size, 2 * size, 5 * size) if step and most / step <= 5)
    return [step * n for n in range(max(1, ceil(most / step)) + 1)]


def _scale(left: float, high: float, ticks: Sequence[int]) -> list[str]:
    parts = []
    for tick in ticks:
        y = high - tick / ticks[-1] * (high - _ROOM)
        parts += [
            line(left, y, WIDTH, y, "grid" if tick else "axis"),
            text(left - 6, y + 4, f"{tick:,}", "small", "end"),
        ]
    return parts


def _dates(days: Sequence[str], x: Callable[[int], float], y: float) -> list[str]:
    """Name about ten of the days, each below its middle and within the picture."""
    every = max(1, ceil(len(days) / 11))
    shown = [(min(x(n), WIDTH - 17), day[5:]) for n, day in enumerate(days) if n % every == 0]
    return [text(place, y, day, "small", "middle") for place, day in shown]


def _legend(left: float, names: Iterable[str]) -> list[str]:
    parts = []
    for n, name in enumerate(names):
        parts += [
            box(left + 8 + n * 110, 2, 10, 10, name, name),
            text(left + 22 + n * 110, 11, name, "small"),
        ]
    return parts
