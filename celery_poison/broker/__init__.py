"""How messages arrive from the broker: unopened, owned from the first moment, and put back in place."""
