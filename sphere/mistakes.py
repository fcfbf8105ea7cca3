"""What the person at the keyboard can mend, in sentences."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something the person at the keyboard can mend; printed without a traceback."""


def nearest(what: str, name: str, known: Iterable[str]) -> UserError:
    """A name that is not there, and which one was probably meant."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return UserError(
        f"no {what} {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}")
    )
