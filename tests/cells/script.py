"""An app that is in no module: `python tests/cells/script.py worker ...`."""

from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.getcwd())

from celery_poison import guarded
from tests.cells.apps import build

app = build(os.environ, current=True)


@guarded
@app.task(bind=True)
def of_script(self: Any) -> tuple[str, bool]:
    with open(f"/proc/{os.getppid()}/comm") as file:
        return self.name, file.read().strip() == "poison-watcher"


if __name__ == "__main__":
    app.worker_main(sys.argv[1:])
