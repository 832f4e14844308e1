"""A delivery as a command to type, without what would make it believed: the reader adds a signature of their own.

The body is read from the file that the page's download gives; it is in no page and no shell history.
"""

import shlex

from payments.models import Event


def command(event: Event, *, origin: str) -> str:
    """Return a curl command that posts the event's bytes and headers again, unsigned."""
    headers = {"content-type": "application/json", **event.headers}
    parts = [["curl", "--request", "POST", f"{origin}/webhooks/{event.endpoint.slug}/"]]
    parts += [["--header", f"{name}: {value}"] for name, value in sorted(headers.items())]
    parts += [["--data-binary", f"@{filename(event)}"]]
    return " \\\n  ".join(shlex.join(part) for part in parts)


def filename(event: Event) -> str:
    """Return what the download of an event's bytes is called."""
    return f"event-{event.pk}.bin"
