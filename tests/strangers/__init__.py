"""Apps as other people write them: what works there without the plugin works with it, and is guarded."""
