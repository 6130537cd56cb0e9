"""``python -m celery_poison.demo`` is ``celery-poison demo``."""

from celery_poison.demo.command import demo

demo(prog_name="celery-poison demo")
