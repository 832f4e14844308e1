#!/usr/bin/env python
"""Django's command line. Exits 2 where a setting can't be used, naming it."""

import os
import sys

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    if sys.argv[1:2] == ["migrate"]:
        # Building an index may take minutes. The lock timeout stays: a migration must not hold up the money.
        os.environ.setdefault("PAYMENTS_STATEMENT_TIMEOUT_MS", "0")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as failure:
        sys.stderr.write(f"{failure}\n")
        sys.exit(2)
    finally:
        _close_pools()


def _close_pools() -> None:
    """Close the pools while their threads can still end: Python 3.13 waits 20 s for them at its end."""
    if not settings.configured:
        return
    for connection in connections.all(initialized_only=True):
        connection.close()
        if isinstance(connection, DatabaseWrapper):
            connection.close_pool()


if __name__ == "__main__":
    main()
