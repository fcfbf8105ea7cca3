"""A MuJoCo of their own for worker processes, where the learner's is another.

MetaWorld and HumanoidBench have their numbers under MuJoCo 3.3.0; GPU physics needs a later one, and pip does not put
two into one environment. So packages in a folder of their own come first on the workers' path: $SPHERE_WORKER_PATH, or
sphere/workers in the user's cache. An empty variable means none.
"""

import importlib.metadata
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from sphere.errors import UserError

VARIABLE = "SPHERE_WORKER_PATH"
PACKAGES = ("mujoco==3.3.0", "metaworld==3.1.1")
"""What goes there."""


def _chosen() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sphere", "workers")


def folder() -> Path | None:
    """Where the workers' own packages are; None: they have the learner's."""
    if VARIABLE in os.environ:
        given = os.environ[VARIABLE]
        found = Path(given).expanduser().absolute() if given else None
        if found is not None and not found.is_dir():
            raise UserError(f"{VARIABLE} names {found}, which is no folder; make it with: {command(found)}")
        return found
    return _chosen() if _chosen().is_dir() else None


def command(where: Path | None = None) -> str:
    """The one that sets it up. Without dependencies: the learner's environment has them."""
    return f"{Path(sys.executable).name} -m pip install --no-deps --target {shlex.quote(str(where or _chosen()))} " + (
        " ".join(PACKAGES)
    )


def mujoco_version() -> str | None:
    """That of the workers."""
    own = folder()
    there = importlib.metadata.distributions(name="mujoco", path=[str(own)]) if own else ()
    for found in there:
        return found.version
    try:
        return importlib.metadata.version("mujoco")
    except importlib.metadata.PackageNotFoundError:
        return None


def first(suite: Any) -> list[str]:
    """What comes first on the path of workers with a suite's environments: their own packages, if it has a MuJoCo."""
    own = folder() if hasattr(suite, "mujoco_version") else None
    return [] if own is None else [str(own)]


def check_suite(suite: Any) -> None:
    """Refuse workers with another MuJoCo than the one whose numbers a suite has. None at all is said elsewhere."""
    found, wanted = mujoco_version(), getattr(suite, "mujoco_version", None)
    if wanted is not None and found not in (None, wanted):
        raise UserError(
            f"simulator processes would have mujoco {found}, and these environments have their numbers under {wanted}; "
            f"set that up beside it with: {command()}"
        )
