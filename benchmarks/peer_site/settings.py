"""The peer's settings: what its documentation asks for, and the database as fast as it can be had.

No middleware at all, and pooled connections: both are in the peer's favour.
"""

import os
from urllib.parse import parse_qs, urlsplit

_url = urlsplit(os.environ["DATABASE_URL"])

SECRET_KEY = "for-benchmarks-only-" * 3
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "djstripe",
    "benchmarks.peer_site",
]
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "benchmarks.peer_site.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.lstrip("/"),
        "USER": _url.username,
        "PASSWORD": _url.password or "",
        "HOST": parse_qs(_url.query).get("host", [_url.hostname])[0],
        "PORT": _url.port,
        "OPTIONS": {"pool": {"min_size": 2, "max_size": 12, "timeout": 10}},
    }
}
LOGGING_CONFIG = None

STRIPE_LIVE_MODE = True
STRIPE_LIVE_SECRET_KEY = "sk_live_000000000000000000000000"
DJSTRIPE_FOREIGN_KEY_TO_FIELD = "id"
# Nothing listens there: an event that would ask Stripe's API fails instead of being measured.
STRIPE_API_HOST = "http://127.0.0.1:9"
