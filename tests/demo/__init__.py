"""The demo as a person runs it: the whole command, from outside."""
