"""From the journal in Redis into the lake: every entry once, whatever is killed on the way."""
