"""Suspects are tried in cells: real workers, real watchers, real deaths."""
