"""Settings. Everything an operator may change comes from the environment; ``forge doctor`` prints what is in force."""

import os
import secrets
import sys
from pathlib import Path
from typing import Any

import dj_database_url
import django_stubs_ext

django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent

FORGE_HOME = Path(os.environ.get("FORGE_HOME") or Path.home() / ".forge").expanduser().absolute()
FORGE_LEASE_TTL_S = float(os.environ.get("FORGE_LEASE_TTL_S", "30"))
FORGE_HOST_SLOTS = int(os.environ.get("FORGE_HOST_SLOTS", "64"))
FORGE_WORKERS = int(os.environ.get("FORGE_WORKERS", "3"))  # one tick, the rest effects
FORGE_TICK_PERIOD_S = 1.0  # the safety period; wake-ups make it faster
FORGE_GIT_TIMEOUT_S = float(os.environ.get("FORGE_GIT_TIMEOUT_S", "120"))
FORGE_COMMIT_NAME = os.environ.get("FORGE_COMMIT_NAME", "Forge")
FORGE_COMMIT_EMAIL = os.environ.get("FORGE_COMMIT_EMAIL", "forge@localhost")
FORGE_BIND = os.environ.get("FORGE_BIND", "127.0.0.1:8420")
# What a job sees of the operator's environment; everything else is built explicitly.
FORGE_PASS_ENV = tuple(os.environ.get("FORGE_PASS_ENV", "PATH,HOME,USER,LOGNAME,TMPDIR,LANG,LC_ALL,TZ").split(","))


def _secret_key() -> str:
    """From the environment, else the installation's own file, else one for this process (before ``forge init``)."""
    if given := os.environ.get("FORGE_SECRET_KEY"):
        return given
    try:
        return (FORGE_HOME / "secret_key").read_text().strip()
    except OSError:
        return secrets.token_urlsafe(50)


def _database() -> dict[str, Any]:
    """SQLite in the home, or what DATABASE_URL says. Nothing else differs between the two profiles."""
    config: dict[str, Any] = dict(
        dj_database_url.parse(os.environ.get("DATABASE_URL") or f"sqlite:///{FORGE_HOME}/db.sqlite3", conn_max_age=None)
    )
    if config["ENGINE"].endswith("sqlite3"):
        config["OPTIONS"] = {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",  # a deferred one fails with "database is locked" when it turns into a writer
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA journal_size_limit=67108864;",
        }
    else:
        config["CONN_HEALTH_CHECKS"] = True
        config["OPTIONS"] = {"options": "-c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000"}
    return config


SECRET_KEY = _secret_key()
DEBUG = os.environ.get("FORGE_DEBUG") == "1"
ALLOWED_HOSTS = os.environ.get("FORGE_ALLOWED_HOSTS", "127.0.0.1,localhost,[::1]").split(",")
CSRF_TRUSTED_ORIGINS = [origin for origin in os.environ.get("FORGE_TRUSTED_ORIGINS", "").split(",") if origin]
ROOT_URLCONF = "forge_site.urls"
ASGI_APPLICATION = "forge_site.asgi.application"
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-gb"
USE_I18N = False
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": _database()}

INSTALLED_APPS = [
    *(["daphne"] if "runserver" in sys.argv else []),  # it replaces that command; elsewhere it only costs half a second
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "django_q",
    "core",
    "leases",
    "workspaces",
    "jobs",
    "integration",
    "graphs",
    "campaigns",
    "recovery",
    "forge_site",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "forge_site.middleware.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

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

STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True  # served from the installed package; no collectstatic needed on a single host
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"
SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_NAME = "forge_session"
CSRF_COOKIE_NAME = "forge_csrf"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "forge_site.authentication.BearerAuthentication",  # first: its challenge makes an anonymous request a 401
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "forge_site.api.schema.ForgeSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "EXCEPTION_HANDLER": "forge_site.problems.exception_handler",
    "DEFAULT_PAGINATION_CLASS": "forge_site.pagination.ByNewest",
    "PAGE_SIZE": 50,
    "URL_FORMAT_OVERRIDE": None,
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Forge",
    "DESCRIPTION": "Graphs of work on git repositories: what runs, what waits and why, what landed.",
    "VERSION": "0.1.0",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": ["forge_site.api.schema.add_stream"],
}

# The facts behind these numbers (docs/performance.md): ticks are short, a redelivery must not come before the timeout.
Q_CLUSTER = {
    "name": "forge",
    "broker_class": "forge_site.broker.ForgeBroker",
    "workers": FORGE_WORKERS,
    "timeout": 900,
    "retry": 3600,
    "ack_failures": True,
    "queue_limit": FORGE_WORKERS,
    "bulk": 1,
    "poll": 1,
    "guard_cycle": 0.5,
    "save_limit": -1,
    "catch_up": False,
    "scheduler": False,
    "recycle": 100_000,
    "daemonize_workers": True,
    "label": "Queue",
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("FORGE_LOG_LEVEL", "WARNING")},
}
