"""A Celery application whose broker is in its own memory (needs celery)."""

from celery import Celery

app = Celery("celery_tasks", broker="memory://")
