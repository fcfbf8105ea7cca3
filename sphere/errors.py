"""Errors that a user can fix, in sentences."""

import difflib
import math
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
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            wanted = [f"at least {low:g}" if low is not None else "", f"at most {high:g}" if high is not None else ""]
            raise UserError(f"{prefix}{name}={value}; want a number, {' and '.join(filter(None, wanted))}")


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """A name that is not there, and which one was probably meant."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    meant = f"did you mean {near[0]}? " if near else ""
    return UserError(f"there is no {kind} {name!r}; {meant}known: {', '.join(known)}")
