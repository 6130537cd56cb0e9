"""One page to look at, and the same figures as JSON (NEW-7).

``gather`` asks Spark for the few hundred rows that are shown; ``render`` makes a page of them and knows no
Spark.
"""

from celery_poison.pipeline.report.gather import gather
from celery_poison.pipeline.report.page import render

__all__ = ["gather", "render"]
