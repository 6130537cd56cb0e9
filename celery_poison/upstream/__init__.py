"""What we know of the inside of Celery, billiard and kombu: private names, and how requests end."""
