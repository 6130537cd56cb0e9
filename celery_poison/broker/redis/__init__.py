"""Redis and Valkey, with or without a Sentinel: this package keeps the books, since the broker does not."""
