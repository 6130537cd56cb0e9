"""What ``celery poison doctor`` looks at: each check yields findings, and changes nothing that stays."""
