"""What Spark's tasks make of files themselves, with Arrow: rows cost more on their way through Java."""
