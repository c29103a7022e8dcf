"""Who may use the server: requests of its own pages and of programs, not of another site's page; what its host exposes."""

from __future__ import annotations

import ipaddress
import os
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

_READING = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_OWN_SITE = frozenset({"same-origin", "none"})
_USERS = "simpletuner.simpletuner_sdk.server.services.cloud.auth.user_store"


def guard_app(app: Any) -> None:
    """Once for an application of the server, before it has routes."""
    app.add_middleware(SameOrigin)


def foreign_site(headers: Headers) -> str | None:
    """The other site that a request names as its sender; None for our pages, and for programs, which name none."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        allowed = {word.strip() for word in os.environ.get("ALLOWED_ORIGINS", "").split(",")} - {"*"}
        own = urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        return None if own or origin in allowed else origin
    return None if site is None or site in _OWN_SITE else site


class SameOrigin:
    """Rejects a request that changes something and was sent by a page of another site."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As ASGI calls it."""
        if scope["type"] == "lifespan":
            await _report_host()
        elif scope["type"] == "http" and scope["method"] not in _READING:
            sender = foreign_site(Headers(scope=scope))
            if sender is not None:
                detail = (
                    f"Rejected: a page of another site ({sender}) sent this request. Use the server's own page; "
                    "to allow a site, start the server with its address in ALLOWED_ORIGINS."
                )
                await JSONResponse({"detail": detail}, status_code=403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def _report_host() -> None:
    """Printed at the start of `simpletuner server`, which leaves its host and port in the environment."""
    host, port = (os.environ.get(f"SIMPLETUNER_WEBHOOK_{part}", "") for part in ("HOST", "PORT"))
    if is_loopback(host):
        print(
            f"> Only this machine can reach it. From another one: ssh -L {port}:127.0.0.1:{port} THIS_MACHINE, then "
            f"http://localhost:{port}/web/trainer. To bind another address: --host ADDRESS",
            flush=True,
        )
    elif host and not await login_is_set_up():
        print(
            f"WARNING: any client that can reach {host}:{port} controls this server: no login is set up.\n"
            "  why: without users SimpleTuner accepts every request as its local administrator\n"
            "  fix: create one with `simpletuner auth setup`, or start without --host and use an SSH tunnel",
            flush=True,
        )


async def login_is_set_up() -> bool:
    """Whether there is a user besides SimpleTuner's own local administrator."""
    return not await import_module(_USERS).UserStore().needs_first_admin_setup()


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
