"""What the web process serves: Django, and beside it the long-lived and the always-answering parts."""

from __future__ import annotations

import os
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "forge_site.settings")
django_application = get_asgi_application()  # first: it sets Django up for the imports below

from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402

from forge_site.consumers import Feed, event_stream  # noqa: E402
from forge_site.health import health, ready  # noqa: E402

# No page of another site may listen with the cookies of whoever looks at it.
feed = AllowedHostsOriginValidator(Feed.as_asgi())

HTTP = {
    "/health": health,
    "/ready": ready,
    "/api/v1/events/stream": event_stream,
}
WEBSOCKET = {"/ws/feed": feed}


async def refuse(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """There is no such socket."""
    await send({"type": "websocket.close"})


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await WEBSOCKET.get(scope["path"], refuse)(scope, receive, send)
    elif scope["type"] == "http":
        await HTTP.get(scope["path"], django_application)(scope, receive, send)
