"""The SDK of hapax for Python.

A handler is a function in `handler.py`:

    def handle(message: hapax.Message) -> None

It has succeeded when it returns, and failed when it raises: `Reject` makes a dead letter at once, any other exception has the message run
again. There is no network, clock or randomness; what it can do is `sql`, `outbox`, `config` and `log`.
"""

from . import config, log, outbox, sql
from ._errors import HostError, Reject, Retry
from ._message import Instant, Message
from ._values import Interval, Json, Value

__all__ = [
    "HostError",
    "Instant",
    "Interval",
    "Json",
    "Message",
    "Reject",
    "Retry",
    "Value",
    "config",
    "log",
    "outbox",
    "sql",
]
