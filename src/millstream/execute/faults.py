"""Which errors are the own ones of a standing query or view: it is marked failed, or done apart, and others go on.

A mistake of ours that one of them meets is its own, too: raised, it would be met again in every step, and nobody
would be answered any more. What the machine does (disk, memory, Java), what somebody cancels, and the end of the
program are nobody's own, and are raised.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from millstream.errors import Condition, DataError, InternalError, MillstreamError, StatementError

MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""What Python and Arrow raise where our code is wrong."""


def own_fault(error: BaseException) -> MillstreamError | None:
    """The error as the query's or view's own; None if it is to be raised."""
    if isinstance(error, StatementError | DataError | InternalError):
        return None if error.condition is Condition.CANCELLED else error
    return _mistake(error) if isinstance(error, MISTAKES) else None


def _mistake(error: Exception) -> InternalError:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"In {Path(frames[-1].filename).name}, line {frames[-1].lineno}." if frames else None
    return InternalError(f"{type(error).__name__}: {error}", detail=where)
