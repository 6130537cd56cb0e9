"""The quarantine inside Flower: pages, a JSON API and a tab, added without a fork.

Either ``celery -A proj poison flower`` with all of Flower's options, or two lines in ``flowerconfig.py``::

    from celery_poison.flower import install
    install()

In reading order: ``install`` adds the routes and the tab; ``reading`` and ``acting`` answer the pages,
``api`` the programs, all after ``guarding`` has let a request in. What they ask is answered by ``desk``,
away from Flower's event loop, from ``shelf`` and :class:`~celery_poison.quarantine.Quarantine`; ``actions``
finds out what can be done, ``jobs`` does it.
"""

from celery_poison.flower.install import install

__all__ = ["install"]
