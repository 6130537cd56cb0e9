"""The quarantine room, without workers where none is needed."""
