"""docs/demo.svg: the demo as a moving picture. `python docs/site/demo_svg.py` runs and draws it.

Each line appears when it was printed, five times as fast. The picture moves by CSS alone, and stands still
for readers whose system asks for less motion.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from typing import NamedTuple

PICTURE = Path(__file__).resolve().parents[1] / "demo.svg"
SPEED = 5.0
#: Seconds for which the last picture stands before it begins anew.
HOLD = 8.0
LINE, CHARACTER, MARGIN = 19, 8.0, 18
_STATUS = re.compile(r"^\s*\d+ s\s+healthy \d+ of ")
_COLOURS = ((r"✓", "good"), (r"in quarantine", "kept"), (r"released|given up|repaired", "done"))


class Line(NamedTuple):
    """A printed line.

    Attributes:
        at: seconds since the demo began.
        text: without blanks at its end.
    """

    at: float
    text: str


def record() -> list[Line]:
    """Run the demo, and return what it printed, and when.

    Raises:
        subprocess.CalledProcessError: it broke a promise.
    """
    command = shutil.which("celery-poison", path=str(Path(sys.executable).parent)) or "celery-poison"
    began, lines = time.monotonic(), []
    with subprocess.Popen([command, "demo"], stdout=subprocess.PIPE, text=True, bufsize=1) as demo:
        assert demo.stdout is not None
        for text in demo.stdout:
            lines.append(Line(time.monotonic() - began, text.rstrip()))
    if demo.returncode:
        raise subprocess.CalledProcessError(demo.returncode, command)
    return lines


def draw(lines: list[Line]) -> str:
    """Return the picture: the progress in one row, changed in place; everything else below it."""
    status = [line for line in lines if _STATUS.match(line.text)]
    others = [line for line in lines if line.text and line not in status]
    shown = [
        Line(0.0, "$ celery-poison demo"),
        *(line for line in others if line.text != "celery-poison demo"),
    ]
    length = max(line.at for line in lines) / SPEED + HOLD
    verdict = min((line.at for line in others if "✓" in line.text), default=length * SPEED)
    parts, styles = [], []
    for number, line in enumerate(status):
        end = status[number + 1].at if number + 1 < len(status) else None
        parts.append(_text(line.text.strip(), 2, "now", f"s{number}"))
        styles.append(_moment(f"s{number}", line.at, end, length))
    for number, line in enumerate(shown):
        row = number if number < 2 else number + 2 + (line.at >= verdict)
        parts.append(_text(line.text, row, _colour(line.text), f"l{number}"))
        styles.append(_moment(f"l{number}", line.at, None, length))
    width = MARGIN * 2 + int(max(len(line.text) for line in lines) * CHARACTER)
    height = MARGIN * 2 + LINE * (len(shown) + 3)
    return _HEAD.format(width=width, height=height, moments="".join(styles)) + "".join(parts) + "</svg>\n"


def _text(text: str, row: int, colour: str, name: str) -> str:
    y = MARGIN + LINE * row + 14
    return f'<text x="{MARGIN}" y="{y}" class="{colour} {name}" xml:space="preserve">{escape(text)}</text>\n'


def _colour(text: str) -> str:
    return next((name for pattern, name in _COLOURS if re.search(pattern, text)), "plain")


def _moment(name: str, begin: float, end: float | None, length: float) -> str:
    """Return when something is seen, as parts of the whole length."""
    first = min(99.0, begin / SPEED / length * 100)
    steps = f"0%{{opacity:0}}{first:.2f}%{{opacity:1}}" if first else "0%{opacity:1}"
    steps += f"{end / SPEED / length * 100:.2f}%{{opacity:0}}" if end else ""
    still = f"@media(prefers-reduced-motion:reduce){{.{name}{{animation:none;opacity:{0 if end else 1}}}}}"
    return (
        f"@keyframes {name}{{{steps}100%{{opacity:{0 if end else 1}}}}}"
        f".{name}{{animation:{name} {length:.1f}s step-end infinite}}{still}\n"
    )


_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 role="img">
<title>celery-poison demo: healthy tasks go on, every kind of poison ends in quarantine</title>
<desc>A recorded run, five times as fast; made by docs/site/demo_svg.py.</desc>
<style>
text{{font:13.2px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d6deeb}}
.now{{fill:#82aaff}}.kept{{fill:#ffcb6b}}.good{{fill:#7fdb8f}}.done{{fill:#c792ea}}
{moments}</style>
<rect width="100%" height="100%" rx="8" fill="#0f1724"/>
"""

if __name__ == "__main__":
    PICTURE.write_text(draw(record()), encoding="utf-8")
