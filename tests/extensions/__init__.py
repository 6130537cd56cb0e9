"""What hangs on the core by hooks, and the core without it."""
