"""What we know of Celery, billiard and kombu: private names, how tasks acknowledge, and how requests end."""
