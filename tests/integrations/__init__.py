"""Beside other packages: each does its work in a worker that is guarded. Run by `tox -e integrations`."""
