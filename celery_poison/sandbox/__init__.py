"""Trials: a suspect runs alone, in a fresh process whose death harms nobody (design decision 6).

``host`` in the worker's main process hands a suspect over, ``watcher`` is the process between them that may
be killed with the suspect, ``cell`` is where it runs, ``loading`` tells the cell which app it belongs to.
"""
