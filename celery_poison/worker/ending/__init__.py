"""How a task ended or died, and what becomes of its message."""
