"""The connection pools at a process's end."""

from django.conf import settings
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper


def close() -> None:
    """Close the pools while their threads can still end: Python 3.13 waits 20 s for them at its end."""
    if not settings.configured:
        return
    for connection in connections.all(initialized_only=True):
        connection.close()
        if isinstance(connection, DatabaseWrapper):
            connection.close_pool()
