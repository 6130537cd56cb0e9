"""A worker's life in the ledger: its heartbeat and its names, and what it does when something breaks."""
