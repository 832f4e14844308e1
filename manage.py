#!/usr/bin/env python
"""Django's command line."""

import os
import sys

from django.core.management import execute_from_command_line


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    if sys.argv[1:2] == ["migrate"]:
        # Building an index may take minutes. The lock timeout stays: a migration must not hold up the money.
        os.environ.setdefault("PAYMENTS_STATEMENT_TIMEOUT_MS", "0")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
