"""How a message is kept: its original, arguments, body and fingerprint, the room there is, and the spool."""
