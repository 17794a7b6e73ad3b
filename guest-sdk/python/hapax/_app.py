"""What a build puts around the handler."""

from __future__ import annotations

import traceback

import handler
import wit_world
from componentize_py_types import Err
from wit_world.imports import types

from . import log
from ._errors import HostError, Reject, Retry
from ._message import Instant, Message


class WitWorld(wit_world.WitWorld):
    def handle(self, message: types.Message) -> None:
        moment = message.published_at
        try:
            handler.handle(
                Message(
                    id=message.id,
                    source=message.source,
                    subject=message.subject,
                    key=message.key,
                    headers=[(header.name, bytes(header.value)) for header in message.headers],
                    content_type=message.content_type,
                    payload=bytes(message.payload),
                    attempt=message.attempt,
                    published_at=None if moment is None else Instant(moment.seconds, moment.nanoseconds),
                )
            )
        except Reject as error:
            raise Err(types.Failure_Reject(str(error))) from None
        except Retry as error:
            raise Err(types.Failure_Retry(types.Retry(str(error), error.delay_milliseconds))) from None
        except HostError as error:
            raise Err(types.Failure_Retry(types.Retry(str(error), None))) from None
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.error(reason, traceback=_places(error))
            raise Err(types.Failure_Retry(types.Retry(reason, None))) from None


def _places(error: Exception) -> str:
    """Returns where the exception came by. Formatting it in the usual way would look for source files, of which there are none: that traps."""
    frames = traceback.walk_tb(error.__traceback__)
    return "; ".join(f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in frames)
