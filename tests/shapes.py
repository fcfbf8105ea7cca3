"""The run-time type checker of the tests: beartype, with an int accepted where a float is wanted.

jaxtyping's import hook puts `jaxtyping.jaxtyped` on every function of the package. Its own binds the arguments of every
call to their names for its messages, which takes five times as long as all that the package does in a small training;
this one opens a scope for the names of axes where a function has any, and does nothing else.
"""

import dataclasses
import functools
import inspect
import typing

import jaxtyping
from beartype import BeartypeConf, beartype

axes = jaxtyping.jaxtyped
check = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=jaxtyping.TypeCheckError))


def install(package: str) -> None:
    """From here on every annotated function of the package checks what it is given and gives back."""
    jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook(package, "shapes.check")


def jaxtyped(item=None, *, typechecker):
    """`jaxtyping.jaxtyped`, as its import hook calls it."""
    if item is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if inspect.isclass(item):
        if dataclasses.is_dataclass(item) and "__init__" in vars(item):
            item.__init__ = jaxtyped(item.__init__, typechecker=typechecker)
        return item
    if isinstance(item, classmethod | staticmethod):
        return type(item)(jaxtyped(item.__func__, typechecker=typechecker))
    if isinstance(item, property):
        parts = (item.fget, item.fset, item.fdel)
        return property(*(part and jaxtyped(part, typechecker=typechecker) for part in parts))
    known = {name: resolved(hint, item.__globals__) for name, hint in item.__annotations__.items()}
    item.__annotations__ = known
    checked = typechecker(item)
    return scoped(checked) if any(map(names_axes, known.values())) else checked


def resolved(annotation, names):
    """What a string means where a function is defined; anything, if that cannot be known yet."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, names)
    except Exception:
        return typing.Any


def names_axes(annotation) -> bool:
    """Whether there is an array type in it."""
    if inspect.isclass(annotation) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(names_axes, typing.get_args(annotation)))


def scoped(function):
    """The names of axes stand for the same sizes in all arguments and the result of one call."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with axes("context"):
            return function(*args, **kwargs)

    return wrapped
