#!/usr/bin/env python
"""Django's command line. Exits 2 where a setting can't be used, naming it."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from project import pools


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
        pools.close()


if __name__ == "__main__":
    main()
