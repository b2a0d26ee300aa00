"""
A protected call outlasts a misbehaving service. Run it: ``make demo``.

A small HTTP service on this machine answers badly on purpose: it is busy, hangs up, is down for a while, and refuses what is wrong. The
calls to it are protected by one guard. Everything that is printed below a call is an event of Outlast's, as it happened.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from rich.console import Console

import outlast

if TYPE_CHECKING:
    from outlast.observe.events import Event

console = Console(highlight=False, soft_wrap=True)
COLOURS = {"info": "green", "warning": "yellow", "error": "red"}


class Service(BaseHTTPRequestHandler):
    """Answers a request with the next line of its script; the last line stays."""

    scripts: dict[str, list[int | str]] = {  # noqa: RUF012 - the demo's script
        "/report": [503, "hang up", 200],
        "/orders": [500, 500, 500, 200],
        "/users/42": [404],
    }

    def do_GET(self) -> None:
        script = self.scripts[self.path]
        answer = script.pop(0) if len(script) > 1 else script[0]
        if answer == "hang up":
            self.close_connection = True
            return
        self.send_response(int(answer))
        if answer == 503:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(b"all is well" if answer == 200 else b"")

    def log_message(self, *_: Any) -> None:
        """The demo tells its own story."""


def show(event: Event) -> None:
    """Print an event as it happens."""
    console.print(f"   [{COLOURS[event.level]}]{event.name}[/]  {event.sentence()}")


def main() -> None:
    """Run the demo."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    outlast.observe.subscribe(show)

    service = outlast.Guard(
        "service",
        retry=outlast.RetryPolicy(max_attempts=4, initial_delay=0.2),
        total_timeout=30,
        breaker=outlast.CircuitBreaker("service", failure_threshold=3, reset_timeout=1, half_open_requests=1),
        on_open="wait",
    )

    def read(path: str) -> str:
        with urllib.request.urlopen(base + path, timeout=5) as answer:
            return str(answer.read().decode())

    fetch = service(read)

    console.print("[bold]1. The service is busy, asks for a second, then hangs up.[/]")
    console.print(f"   → {fetch('/report')}\n")

    console.print("[bold]2. The service is down. The circuit breaker opens, waits, and probes.[/]")
    console.print(f"   → {fetch('/orders')}\n")

    console.print("[bold]3. Something that trying again cannot mend: one call, and the exception says why.[/]")
    try:
        fetch("/users/42")
    except urllib.error.HTTPError as error:
        console.print(f"   → {type(error).__name__}: {error}")
        console.print(f"   → {error.__notes__[-1]}")
        console.print(f"   → stop reason: {outlast.stop_reason(error)}, attempts: {len(outlast.history(error))}\n")

    console.print("[bold]4. The same, as a value instead of an exception.[/]")
    outcome = service.outcome(read, "/users/42")
    console.print(f"   → {outcome}\n")

    console.print("[bold]5. What the policy will do is known before anything runs.[/]")
    for delay in service.retry.schedule():
        console.print(
            f"   before attempt {delay.attempt}: {delay.nominal:.1f} s, between {delay.min:.2f} and {delay.max:.2f}"
        )
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
