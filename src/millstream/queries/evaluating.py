"""Expressions of many queries over the rows of one basket: each text once, each only over rows that ask for it.

An expression that fails on a row fails alone: what the others give stands. All are evaluated at once; only if that
fails are they tried apart, by halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from millstream.errors import Condition, DataError, StatementError
from millstream.plan.sharing import ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from millstream.errors import MillstreamError
    from millstream.queries.answering import Answers

    Numbers = NDArray[np.int64]
    Values: TypeAlias = pa.ChunkedArray | MillstreamError

WANTED = "__ms_wanted_{}"


@dataclass(frozen=True)
class Asked:
    """An expression, its type, and the places of the rows that it is wanted for, in order."""

    text: str
    type: pa.DataType
    places: Numbers


def evaluate(answers: Answers, rows: pa.Table, asked: Sequence[Asked]) -> list[Values]:
    """The values of some expressions, one for each place; or, where there are none, why."""
    if not asked:
        return []
    try:
        return list(_together(answers, rows, asked))
    except (StatementError, DataError) as error:
        if error.condition is Condition.CANCELLED:
            raise
        if len(asked) == 1:
            return [error]
    half = len(asked) // 2
    return evaluate(answers, rows, asked[:half]) + evaluate(answers, rows, asked[half:])


def _together(answers: Answers, rows: pa.Table, asked: Sequence[Asked]) -> list[pa.ChunkedArray]:
    needed = np.unique(np.concatenate([a.places for a in asked]))
    some, texts = rows.take(pa.array(needed)), []
    at = [np.searchsorted(needed, a.places) for a in asked]
    for number, (one, own) in enumerate(zip(asked, at, strict=True)):
        if len(own) == len(needed):
            texts.append(one.text)
            continue
        name = WANTED.format(number)
        is_wanted = np.zeros(len(needed), bool)
        is_wanted[own] = True
        some = some.append_column(name, pa.array(is_wanted))
        texts.append(f"CASE WHEN {ROWS}.`{name}` THEN {one.text} END")
    found = answers.evaluated(texts, [a.type for a in asked], some)
    return [
        found.column(i).take(pa.array(own)).cast(a.type) for i, (a, own) in enumerate(zip(asked, at, strict=True))
    ]
