"""Fleets of workers that are only counted: what a rule convicts when whole workers die."""
