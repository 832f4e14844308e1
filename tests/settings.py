"""The project's settings for tests: a bare `pytest` needs no environment, and nobody's `.env` changes a test.

Where DATABASE_URL is unset, tests have an embedded PostgreSQL of their own, beside that of `make run`.
"""

import os
from pathlib import Path

from project import embedded

_folder = Path(__file__).resolve().parent.parent / os.environ.get("DATA_DIR", ".data")
_server = None if os.environ.get("DATABASE_URL") else embedded.locate(data_dir=_folder, name="postgres-test")

# In the environment, so that the servers and commands that tests start have them too.
os.environ["ENV_FILE"] = os.devnull
os.environ.setdefault("SECRET_KEY", "for-tests-only-" * 4)
if _server:
    os.environ["DATABASE_URL"] = _server.url

from project.settings import *  # noqa: E402, F403

EMBEDDED_POSTGRESQL = _server
# `make check` deploys nothing, and nobody logs in.
SILENCED_SYSTEM_CHECKS += ["payments.W009"]  # noqa: F405
# Passwords are not what is tested here, and a slow hash is slow on purpose.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# A test's transaction stays open while the test thinks; DROP DATABASE may take long on a busy machine.
DATABASES["default"]["OPTIONS"]["options"] += (  # noqa: F405
    " -c idle_in_transaction_session_timeout=0 -c statement_timeout=60s"
)
