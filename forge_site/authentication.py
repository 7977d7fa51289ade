"""Who asks: a bearer token or a session. One way for REST, sockets and streams; the raw token is never stored.

Must not import ``rest_framework.views`` at the top: that module imports this one through its settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from rest_framework import authentication, exceptions
from rest_framework.request import Request

from core.models import AccessToken
from core.uow import FROM_CLOCK, unit_of_work

if TYPE_CHECKING:
    from django.contrib.auth.models import User

REALM = 'Bearer realm="forge"'


def digest_of(raw: str) -> str:
    """What is stored of a token. Plain sha256 is enough: a token is 256 random bits, no guessable password."""
    return hashlib.sha256(raw.encode()).hexdigest()


def _valid_tokens(raw: str, now: datetime) -> QuerySet[AccessToken]:
    return AccessToken.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=now), digest=digest_of(raw), owner__is_active=True
    )


def owner_of(raw: str, *, now: datetime | None = None) -> User | None:
    """The person behind a bearer token. A first-login link is no bearer token: it is worth one session, not an API."""
    token = _valid_tokens(raw, now or datetime.now(UTC)).filter(single_use=False).select_related("owner").first()
    return token.owner if token else None


@unit_of_work
def spend_first_login(*, raw: str, now: datetime = FROM_CLOCK) -> User | None:
    """The owner of a first-login link, once.

    Writes:  deletes the token; the row count decides between two that follow the same link
    Returns: None for a link that is unknown, expired or spent
    """
    token = _valid_tokens(raw, now).filter(single_use=True).select_related("owner").first()
    if token is None:
        return None
    deleted, _ = AccessToken.objects.filter(pk=token.pk).delete()
    return token.owner if deleted else None


class BearerAuthentication(authentication.BaseAuthentication):
    """``Authorization: Bearer <token>``."""

    def authenticate(self, request: Request) -> tuple[User, None] | None:
        raw = _bearer([(b"authorization", authentication.get_authorization_header(request))])
        if raw is None:
            return None
        user = owner_of(raw)
        if user is None:
            raise exceptions.AuthenticationFailed("The token is unknown, expired or withdrawn.", code="invalid_token")
        return user, None

    def authenticate_header(self, request: Request) -> str:
        return REALM


def user_of_scope(scope: dict[str, Any]) -> User | None:
    """Who opened an ASGI connection that does not pass through Django's handler: by bearer token, else by session.

    Reads the database, so it belongs into a thread (``feed.in_thread``).
    """
    raw = _bearer(scope["headers"])
    if raw is not None:
        return owner_of(raw)
    request = HttpRequest()
    request.session = _session(_cookie(scope["headers"], settings.SESSION_COOKIE_NAME))
    user = get_user(request)
    return user if user.is_authenticated else None


def _session(key: str | None) -> Any:
    return import_module(settings.SESSION_ENGINE).SessionStore(key)


def _bearer(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    for name, value in headers:
        scheme, _, raw = value.decode("latin1").partition(" ")
        if name == b"authorization" and scheme.lower() == "bearer":
            return raw.strip()
    return None


def _cookie(headers: Iterable[tuple[bytes, bytes]], wanted: str) -> str | None:
    for name, value in headers:
        if name == b"cookie":
            try:
                morsel = SimpleCookie(value.decode("latin1")).get(wanted)
            except CookieError:
                return None
            return morsel.value if morsel else None
    return None
