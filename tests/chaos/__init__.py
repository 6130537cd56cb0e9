"""The chaos program: its plan, its judge, and short runs of the whole."""
