"""The quarantine inside Flower: pages, a JSON API and a tab, added without a fork.

Either ``celery -A proj poison flower`` with all of Flower's options, or two lines in ``flowerconfig.py``::

    from celery_poison.flower import install
    install()

In reading order: ``install`` adds routes, tab and metrics; ``pages`` answers people, ``api`` programs, both
after ``access`` has let a request in. What they ask is answered by ``ledger``, away from Flower's event loop,
out of the read model and :class:`~celery_poison.quarantine.Quarantine`. ``choosing`` says what can be
done, ``jobs`` does it.
"""

from celery_poison.flower.install import install

__all__ = ["install"]
