"""Errors that a user can fix, in sentences."""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any


class UserError(ValueError):
    """An error that a user can fix; printed without a traceback."""


def in_range(settings: Any, bounds: Mapping[str, tuple[float | None, float | None]], prefix: str = "") -> None:
    """Refuse numbers among the settings that lie outside their bounds (None: unbounded) or are not finite."""
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if value is None:
            continue
        if (
            not _is_number(value, whole=_declared(settings, name) is int)
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            wanted = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
            kind = "whole number" if _declared(settings, name) is int else "number"
            raise UserError(f"{prefix}{name}={value!r:.40}; want a {kind}, {' and '.join(filter(None, wanted))}")


def _declared(settings: Any, name: str) -> Any:
    """The type of a setting; of an optional one, its type where it is given."""
    kind = type(settings).__dataclass_fields__[name].type
    return int if kind == (int | None) else kind


def _is_number(value: Any, whole: bool) -> bool:
    """Finite, and where only whole numbers make sense a whole one."""
    try:
        return math.isfinite(operator.index(value) if whole else value)
    except OverflowError:  # an integer of hundreds of digits, which is finite
        return True
    except (TypeError, ValueError):
        return False


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """A name that is not there, and which one was probably meant."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}? " if near else ""
    return UserError(f"there is no {kind} {name!r}; {meant}known: {', '.join(known)}")
