"""Cells: a suspect runs alone, in a fresh process whose death harms nobody (design decision 6).

In the order in which a trial passes them: ``pool`` stands in for the worker's pool and takes a suspect over;
its threads talk to one cell each. ``process`` opens that cell: ``watcher`` is the process that may be killed
with the suspect, below it ``child`` is where the suspect runs, with the app that it loads, unless one before
it has left something there. ``trial`` holds what they share, among it all that a sandbox asks of its worker,
and what passes between worker and cell.
"""
