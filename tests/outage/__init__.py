"""Redis goes away, forgets, or is cut off, while tasks run: nobody dies, blocks, or is blamed for it."""
