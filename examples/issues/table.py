"""The scripts, and the tables of docs/issues.md, made of what the scripts declare."""

from __future__ import annotations

import inspect
from pathlib import Path

from examples.issues.stage import script

NAMES = sorted(
    (path.stem for path in Path(__file__).parent.glob("*_[0-9]*.py")),
    key=lambda name: (name.split("_")[0], int(name.split("_")[1])),
)
_REPOSITORIES = {
    "billiard": "celery/billiard",
    "celery": "celery/celery",
    "flower": "mher/flower",
    "kombu": "celery/kombu",
}
_HEAD = """\
| issue | what is played | plain Celery | with celery_poison |
|---|---|---|---|"""


def expected(name: str, *, guarded: bool) -> str:
    """What the script declares to come of it."""
    played = script(name)
    return str(played.GUARDED if guarded else played.PLAIN)


def table(state: str) -> str:
    """The table of the scripts with this ``STATE``."""
    return "\n".join([_HEAD, *(_row(name) for name in NAMES if state == script(name).STATE)])


def _row(name: str) -> str:
    _, _, scene = (inspect.getdoc(script(name)) or "").partition("\n\n")
    project, number = name.split("_")
    link = f"https://github.com/{_REPOSITORIES[project]}/issues/{number}"
    cells = [
        f"[{project} #{number}]({link})",
        " ".join(scene.split()),
        expected(name, guarded=False),
        expected(name, guarded=True),
    ]
    return f"| {' | '.join(cells)} |"
