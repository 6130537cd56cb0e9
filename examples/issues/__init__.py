"""One small script for each public issue of Celery, kombu and Flower that docs/issues.md tells of.

``python -m examples.issues celery_9082`` plays one without the plugin and with it, on private servers.
"""
