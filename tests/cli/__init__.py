"""The command line: in process where that is enough, as processes where it matters."""
