"""A queue without a worker, where one sees what has left, in its order."""

from __future__ import annotations

import json

from tests.apps.harness import Fleet


class Harbour:
    """Takes the boxes that have left, in their order; no worker consumes that queue."""

    def __init__(self, crew: Fleet) -> None:
        self._crew = crew
        self._boxes: list[str] = []

    def boxes(self) -> list[str]:
        with self._crew.app.connection_for_write() as connection:
            connection.SimpleQueue("ships").close()  # it may not exist yet
            while message := connection.default_channel.basic_get("ships", no_ack=True):
                self._boxes.append(json.loads(message.body)[0][0])
        return self._boxes
