"""Settings of the project, and the only place that reads the environment.

Variables of the environment beat `.env`; `.env.example` documents each of them with its unit and default. A
value that can't be used stops the start with the variable's name. Importing this module starts nothing and
opens no connection.

After a crash: all that is written here are two secrets of the demo (DEBUG=1) in DATA_DIR, each put in place
whole.
"""

import os
import secrets
from pathlib import Path
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext_lazy as _

from payments import runtime_folder
from payments.database import BoundedConnection
from project import embedded

BASE_DIR = Path(__file__).resolve().parent.parent


class _Environment(environ.Env):  # type: ignore[misc]
    ENVIRON = dict(os.environ)  # a copy: what `.env` says is for us, not for every program that reads variables


env = _Environment()
env.read_env(BASE_DIR / os.environ.get("ENV_FILE", ".env"))


def _text(name: str, default: str = "") -> str:
    # Not env.str(): there, a secret that begins with `$` would be taken for the name of another variable.
    value: str = env.ENVIRON.get(name, "").strip()
    return value or default


def _integer(name: str, default: int, *, at_least: int = 1) -> int:
    text = _text(name, str(default))
    if not text.isdecimal() or int(text) < at_least:
        raise ImproperlyConfigured(f"{name} must be a whole number of at least {at_least}, not {text!r}")
    return int(text)


def _flag(name: str, default: bool) -> bool:
    text = _text(name, str(int(default)))
    if text.lower() not in _FLAGS:
        raise ImproperlyConfigured(f"{name} must be 0 or 1, not {text!r}")
    return _FLAGS[text.lower()]


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _items(name: str, default: str = "") -> tuple[str, ...]:
    return tuple(item.strip() for item in _text(name, default).split(",") if item.strip())


def _suffix(name: str) -> str:
    return name.upper().replace("-", "_")


def _keep(name: str, *, random_bytes: int) -> str:
    """Return a random secret that is made once and kept in DATA_DIR, where only we can read it."""
    path = DATA_DIR / name
    if not path.exists():
        DATA_DIR.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(random_bytes))
        try:
            os.link(draft, path)  # unlike rename, never over what another process put there meanwhile
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()


# The machine ------------------------------------------------------------------------------------------------

DEBUG = _flag("DEBUG", False)
DATA_DIR = BASE_DIR / _text("DATA_DIR", ".data")
RUNTIME_DIR = runtime_folder.locate(DATA_DIR)
PORT = _integer("PORT", 8000)
WEB_CONCURRENCY = _integer("WEB_CONCURRENCY", 2)
WEB_THREADS = _integer("WEB_THREADS", 72)
# Proxies whose word on the caller's scheme and address is taken, by address.
FORWARDED_ALLOW_IPS = ",".join(_items("FORWARDED_ALLOW_IPS", "127.0.0.1,::1"))

ADMIN_PASSWORD = _text("ADMIN_PASSWORD") or (_keep("admin-password", random_bytes=12) if DEBUG else "")
SECRET_KEY = _text("SECRET_KEY") or (_keep("secret-key", random_bytes=48) if DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("SECRET_KEY must be set when DEBUG=0: 50 random characters or more")

ALLOWED_HOSTS = list(_items("ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]"))
CSRF_TRUSTED_ORIGINS = list(_items("CSRF_TRUSTED_ORIGINS"))

# Payments ---------------------------------------------------------------------------------------------------

PAYMENTS_SETTLE_PERMITS = _integer("PAYMENTS_SETTLE_PERMITS", 2)
PAYMENTS_SETTLE_BATCH_MAX = _integer("PAYMENTS_SETTLE_BATCH_MAX", 64)
PAYMENTS_STAFF_PERMITS = _integer("PAYMENTS_STAFF_PERMITS", 4)
# Eight threads of each process are never a delivery's: with all permits taken, staff, health and refusals
# still answer.
PAYMENTS_INTAKE_PERMITS = _integer("PAYMENTS_INTAKE_PERMITS", max(1, WEB_THREADS - 8))
PAYMENTS_BODY_BYTES_MAX = _integer("PAYMENTS_BODY_BYTES_MAX", 1024 * 1024)
PAYMENTS_LOCK_TIMEOUT_MS = _integer("PAYMENTS_LOCK_TIMEOUT_MS", 1000, at_least=100)
PAYMENTS_STATEMENT_TIMEOUT_MS = _integer("PAYMENTS_STATEMENT_TIMEOUT_MS", 3000, at_least=0)
PAYMENTS_DEADLINE_MS = _integer("PAYMENTS_DEADLINE_MS", 6500, at_least=1000)
PAYMENTS_METRICS_TOKEN = _text("PAYMENTS_METRICS_TOKEN")
PAYMENTS_ALLOCATION_SECOND_PERSON = _flag("PAYMENTS_ALLOCATION_SECOND_PERSON", default=False)
PAYMENTS_CONFIRM_URL = _text("PAYMENTS_CONFIRM_URL")

# Where a test makes a process die (payments/failpoints.py). Never in production.
PAYMENTS_FAILPOINT = _text("PAYMENTS_FAILPOINT") if DEBUG else ""

# The permits of one process that stand for a database connection; the pool holds as many connections, no
# more.
PAYMENTS_CONNECTION_PERMITS = {
    "settle": PAYMENTS_SETTLE_PERMITS,
    "staff": PAYMENTS_STAFF_PERMITS,
    "attempts": 1,
    "health": 1,
    "verification": 1,
}

PAYMENTS_OUTBOX_ALLOW_HOSTS = _items("PAYMENTS_OUTBOX_ALLOW_HOSTS")
PAYMENTS_OUTBOX_TIMEOUT_MS = _integer("PAYMENTS_OUTBOX_TIMEOUT_MS", 5000)
# Together some three days: "multiple days" is what Standard Webhooks recommends; its example takes 75 hours.
# https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
PAYMENTS_OUTBOX_TRIES_MAX = _integer("PAYMENTS_OUTBOX_TRIES_MAX", 30)
PAYMENTS_OUTBOX_BACKOFF_MS = _integer("PAYMENTS_OUTBOX_BACKOFF_MS", 1000)
PAYMENTS_OUTBOX_BACKOFF_MAX_MS = _integer("PAYMENTS_OUTBOX_BACKOFF_MAX_MS", 6 * 3_600_000)


def _destination(name: str) -> dict[str, Any]:
    url_name, secrets_name = (
        f"PAYMENTS_OUTBOX_URL_{_suffix(name)}",
        f"PAYMENTS_OUTBOX_SECRETS_{_suffix(name)}",
    )
    url, signing_secrets = _text(url_name), _items(secrets_name)
    is_signed = not url.startswith("mailto:")
    for variable, value in ((url_name, url), (secrets_name, signing_secrets or not is_signed)):
        if not value:
            raise ImproperlyConfigured(f"{variable} must be set: PAYMENTS_OUTBOX_DESTINATIONS names {name!r}")
    return {"url": url, "secrets": signing_secrets}


# Destination -> {"url": str, "secrets": tuple[str, ...]}.
PAYMENTS_OUTBOX = {name: _destination(name) for name in _items("PAYMENTS_OUTBOX_DESTINATIONS")}

# Endpoint's slug, upper-cased and with `_` for `-` -> its secrets, every one of them valid.
_SECRETS_PREFIX = "PAYMENTS_SECRETS_"
PAYMENTS_SECRETS = {
    name.removeprefix(_SECRETS_PREFIX): _items(name) for name in env.ENVIRON if name.startswith(_SECRETS_PREFIX)
}

# Published with the source, so worth nothing: with DEBUG=0 they are refused.
PAYMENTS_DEMO_SECRETS = frozenset(
    {
        "whsec_c2VrYWxpLWRlbW8tZW5kcG9pbnQtc2VjcmV0LTAwMA==",
        "whsec_demo_stripe",
        "SB-Mid-server-demo",
        "xnd-callback-demo",
        "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056",
        "rzp-demo-secret",
    }
)
if not DEBUG:
    for _slug, _values in PAYMENTS_SECRETS.items():
        if PAYMENTS_DEMO_SECRETS.intersection(_values):
            raise ImproperlyConfigured(f"{_SECRETS_PREFIX}{_slug} holds a demo secret; set the gateway's own (DEBUG=0)")

# Database ---------------------------------------------------------------------------------------------------

# What the server itself enforces on each of our sessions. A frozen process must lose its locks before those
# who wait for them give up, hence idle < lock. 0 as the statement's limit lifts both, for commands that may
# take long: migrate.
_IDLE_TIMEOUT_MS = PAYMENTS_LOCK_TIMEOUT_MS * 8 // 10 if PAYMENTS_STATEMENT_TIMEOUT_MS else 0
_SESSION = {
    "statement_timeout": f"{PAYMENTS_STATEMENT_TIMEOUT_MS}ms",
    "lock_timeout": f"{PAYMENTS_LOCK_TIMEOUT_MS}ms",
    "idle_in_transaction_session_timeout": f"{_IDLE_TIMEOUT_MS}ms",
    # A waiter whose client is gone would otherwise keep its place in the queue for a lock.
    "client_connection_check_interval": "500ms",
    # The loser of a claim waits for the winner and must then see the winner's row.
    "default_transaction_isolation": r"read\ committed",
}


# The server of `make run`, on a machine that has none; None where DATABASE_URL names another.
EMBEDDED_POSTGRESQL = None if _text("DATABASE_URL") else embedded.locate(data_dir=DATA_DIR)


def _database(url: str) -> dict[str, Any]:
    if not url.startswith(("postgres://", "postgresql://")):
        raise ImproperlyConfigured("DATABASE_URL must begin with postgresql://")
    config: dict[str, Any] = env.db_url_config(url)
    given: dict[str, Any] = config.pop("OPTIONS", {})
    flags = " ".join(f"-c {name}={value}" for name, value in _SESSION.items())
    return config | {
        "HOST": given.pop("host", config["HOST"]),  # a socket's folder can only be told behind the `?`
        "ATOMIC_REQUESTS": False,
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "connect_timeout": 2,
            "application_name": "sekali",
            **given,
            "options": f"{flags} {given.get('options', '')}".strip(),
            "pool": {
                "connection_class": BoundedConnection,
                "min_size": 0,
                "max_size": sum(PAYMENTS_CONNECTION_PERMITS.values()),
                # Whoever holds a permit finds a connection free or may open one: this is the time to open it.
                "timeout": 0.5,
                # How long one attempt backs off while the server is away; a long one leaves a pause after it
                # is back.
                "reconnect_timeout": 2,
            },
        },
    }


DATABASES = {"default": _database(EMBEDDED_POSTGRESQL.url if EMBEDDED_POSTGRESQL else _text("DATABASE_URL"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Mail -------------------------------------------------------------------------------------------------------


def _mail(url: str) -> dict[str, Any]:
    try:
        config: dict[str, Any] = env.email_url_config(url)
    except (ValueError, ImproperlyConfigured):
        raise ImproperlyConfigured("EMAIL_URL must be like smtp+tls://user:password@host:587") from None  # may show it
    return {name: value for name, value in config.items() if name.startswith("EMAIL_")}


# EMAIL_HOST and what else Django knows of a mail server; unset, all of it is Django's own default.
if _text("EMAIL_URL"):
    globals().update(_mail(_text("EMAIL_URL")))
DEFAULT_FROM_EMAIL = _text("DEFAULT_FROM_EMAIL", "webmaster@localhost")

# Django -----------------------------------------------------------------------------------------------------

INSTALLED_APPS = [
    "project.apps.StaffSiteConfig",  # django.contrib.admin, with a site of our own
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "payments",
]

MIDDLEWARE = [
    "payments.admin.middleware.StaffLimit",
    "payments.admin.headers.StaffHeaders",
    "payments.admin.zones.StaffZone",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "project.middleware.StaffSessionMiddleware",
    "project.middleware.StaffLocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "project.middleware.StaffAuthenticationMiddleware",
    "project.middleware.StaffMessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
# A gateway's POST must never meet a redirect, not even to the same address with a slash.
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("id", _("Indonesian"))]

STATIC_URL = "static/"
# Straight from the installed packages: the same in the demo and in production, and nothing to collect before
# a start.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False

# Django holds a body to this too; ours is the limit that answers 413.
DATA_UPLOAD_MAX_MEMORY_SIZE = max(PAYMENTS_BODY_BYTES_MAX, 2_621_440)

# Security ---------------------------------------------------------------------------------------------------

SECURE_SSL_REDIRECT = _flag("SECURE_SSL_REDIRECT", not DEBUG)
# Machines call these, some of them inside the load balancer, and none follows a redirect.
SECURE_REDIRECT_EXEMPT = [r"^webhooks/", r"^livez$", r"^readyz$", r"^metrics$"]
SECURE_HSTS_SECONDS = 31_536_000 if SECURE_SSL_REDIRECT else 0
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT
SESSION_COOKIE_AGE = 12 * 3600  # a working day
CSRF_COOKIE_HTTPONLY = True
# Webhooks share the host, and never see a cookie of staff's.
SESSION_COOKIE_PATH = CSRF_COOKIE_PATH = "/admin/"
CSRF_COOKIE_SAMESITE = "Strict"
X_FRAME_OPTIONS = "DENY"
# Whether HSTS covers the whole domain, or goes into browsers' lists, is for the domain's owner to say.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# Logs -------------------------------------------------------------------------------------------------------

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "event": {"()": "project.logs.EventFormatter"},
        "callers_fault": {"()": "project.logs.CallersFault"},
    },
    "filters": {"crashes": {"()": "project.logs.OnlyCrashes"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "event"},
        "crashes": {"class": "logging.StreamHandler", "formatter": "event", "filters": ["crashes"]},
        "callers_faults": {"class": "logging.StreamHandler", "formatter": "callers_fault"},
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # A line for each refusal would make a flood of deliveries a flood of lines; the attempt log has them.
        "django.request": {"handlers": ["crashes"], "level": "ERROR", "propagate": False},
        # A crafted filter or a form without its token: Django calls it an ERROR, with its traceback.
        "django.security": {"handlers": ["callers_faults"], "propagate": False},
        # Whoever finds the port can send any host, and each would be an ERROR with its traceback.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        # It warns of nothing but HEAD, which we answer as GET, and whose body it drops as it should.
        "gunicorn.http.wsgi": {"level": "ERROR"},
        # Statements carry what a log must not.
        "django.db.backends": {"level": "WARNING"},
    },
}
