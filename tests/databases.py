"""The tests' database, for processes that tests start."""

from urllib.parse import quote

from django.db import connection


def database_url() -> str:
    """Return the DATABASE_URL of the database that this test has, on a socket or not."""
    given = connection.settings_dict
    user, password, host = (quote(given[name] or "", safe="") for name in ("USER", "PASSWORD", "HOST"))
    where = f"{user}{f':{password}' if password else ''}@"
    if host.startswith("%2F"):  # a socket's folder
        return f"postgresql://{where}/{given['NAME']}?host={host}&port={given['PORT'] or 5432}"
    return f"postgresql://{where}{host or 'localhost'}:{given['PORT'] or 5432}/{given['NAME']}"
