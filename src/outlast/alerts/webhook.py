"""
One POST to a webhook. Its address and its token are secrets: of the address, messages say scheme and host only.
"""

from __future__ import annotations

import json
import threading
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from outlast.errors import TemporaryFailure
from outlast.isolation.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE = 10.0  # seconds for each answer of the network, and half as much again for all of it


class _Stay(HTTPRedirectHandler):
    """A POST that is led elsewhere would arrive there as a GET, without what it says: that is no delivery."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def problems_of(url: str) -> list[str]:
    """What is wrong with the address of a webhook, without saying it."""
    wanted = "expected --webhook to be an address such as https://host/path"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return [f"{wanted}, got: one that cannot be read."]
    if parts.scheme not in {"http", "https"} or not host:
        return [
            f"{wanted}, got: one without {'a host' if parts.scheme in {'http', 'https'} else 'http:// or https://'}."
        ]
    if not url.isascii() or any(sign <= " " or sign == "\x7f" for sign in url):
        return [f"{wanted}, got: one with spaces or signs that no address has."]
    if "@" in parts.netloc:
        return [f"{wanted}, got: one with a user and a password. A token goes into OUTLAST_WEBHOOK_TOKEN."]
    return []


def place_of(url: str) -> str:
    """
    What may be said of an address.

    >>> place_of("https://hooks.example.com:8443/services/T0/secret?key=1")
    'https://hooks.example.com:8443'
    """
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def post(url: str, document: Mapping[str, Any], *, token: str | None = None, patience: float = PATIENCE) -> str | None:
    """Tell a webhook; what went wrong, or None if it has answered with a status from 200 to 299."""
    said: list[str | None] = []
    # Each answer has its time, but a server that drips could take for ever: not of this thread.
    thread = threading.Thread(target=lambda: said.append(_post(url, document, token, patience)), daemon=True)
    try:
        start_thread(thread)
    except TemporaryFailure as refused:
        said.append(str(refused).removesuffix("."))
    else:
        thread.join(1.5 * patience)
    problem = said[0] if said else f"no answer within {1.5 * patience:g} s"
    return None if problem is None else f"the webhook at {place_of(url)} has not taken the notice: {problem}."


def _post(url: str, document: Mapping[str, Any], token: str | None, patience: float) -> str | None:
    headers = {"Content-Type": "application/json", "User-Agent": "outlast"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    request = Request(url, json.dumps(document).encode(), headers, method="POST")  # noqa: S310 - http and https only
    try:
        with build_opener(_Stay).open(request, timeout=patience) as answer:
            return None if 200 <= answer.status < 300 else f"it answered {answer.status}"
    except HTTPError as refused:
        refused.close()
        led = ", and a webhook must not lead elsewhere" if 300 <= refused.code < 400 else ""
        return f"it answered {refused.code}{led}"
    except URLError as failed:
        return _words(failed.reason)
    except (OSError, HTTPException, ValueError) as failed:
        return _words(failed)


def _words(failed: object) -> str:
    """Never the text of an exception: it may hold the address."""
    name = type(failed).__name__
    return f"{name}, {failed.strerror}" if isinstance(failed, OSError) and failed.strerror else name
