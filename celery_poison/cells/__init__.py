"""Cells: a suspect runs alone, in a fresh process whose death harms nobody (design decision 6).

``pool`` stands in for the worker's pool and takes a suspect over; ``running`` and ``trial`` open its cell
and hear it. ``nursery`` forks that through ``watcher``, which may be killed with the suspect, as a ``cell``.
"""
