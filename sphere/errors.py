"""Errors that a user can fix, in sentences."""

import difflib
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any


class UserError(ValueError):
    """An error that a user can fix; printed without a traceback."""


def in_range(settings: Any, bounds: Mapping[str, tuple[float | None, float | None]], prefix: str = "") -> None:
    """Refuse numbers among the settings that lie outside their bounds (None: unbounded), and any that is not finite or
    not of its type."""
    every = {name: (None, None) for name in type(settings).__dataclass_fields__ if _declared(settings, name)[0]}
    for name, (low, high) in {**every, **bounds}.items():
        value = getattr(settings, name)
        kind, optional = _declared(settings, name)
        if value is None and optional:
            continue
        if (
            not _is_number(value, whole=kind is int)
            or (low is not None and value < low)
            or (high is not None and value > high)
        ):
            wanted = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
            told = " and ".join(filter(None, wanted))
            what = "whole number" if kind is int else "number"
            raise UserError(f"{prefix}{name}={value!r:.40}; want a {what}, {told or 'and a finite one'}")


def _declared(settings: Any, name: str) -> tuple[type | None, bool]:
    """The type of a setting, if it is a number, and whether it may be left open."""
    kind = type(settings).__dataclass_fields__[name].type
    for number in (int, float):
        if kind == number or kind == (number | None):
            return number, kind != number
    return None, True


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
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    return UserError(f"there is no {kind} {name!r}; {meant}known: {', '.join(known)}")
