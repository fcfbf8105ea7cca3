"""What a result can depend on besides its settings: versions, commit, device; also how a resume changed them."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sphere
from sphere.storage.files import read_json, write_json

ENVIRONMENT = "environment.json"
COMMIT = "commit.json"
"""In the package of a copy that has left its checkout (`make bundle`): the commit that it was made from."""
ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "mujoco", "mujoco-mjx", "warp-lang", "metaworld", "gymnasium")
"""Of this process. Simulators may be others: a source says which (`simulators`)."""
RESUMED = "resumed"
GIT_SECONDS = 20
"""A file system that does not answer holds no training up: the record is then without a commit."""


def describe() -> dict[str, Any]:
    """The environment of this process, for environment.json. Starts jax's backend."""
    import jax  # only this function needs it, and it takes a second to import

    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "versions": {"sphere-rl": sphere.__version__}
        | {name: version for name in PACKAGES if (version := _version(name))},
        "git": commit(ROOT),
        "device": {"kind": devices[0].device_kind, "platform": devices[0].platform, "count": len(devices)},
        "matmul_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        "x64": jax.config.jax_enable_x64,  # type: ignore[attr-defined]
        "cpus": os.cpu_count(),
        "platform": platform.platform(),
    }


def amended(recorded: Mapping[str, Any], step: int, now: Mapping[str, Any]) -> dict[str, Any]:
    """A record's environment with what is different from `step` on, under "resumed" and the step.

    What was noted of later steps goes: they are about to be written again, from step 0 on all of them.
    """
    if step == 0:
        return dict(now)
    first = {name: value for name, value in recorded.items() if name != RESUMED}
    resumed = {at: change for at, change in recorded.get(RESUMED, {}).items() if int(at) < step}
    latest = first.copy()
    for change in resumed.values():
        latest |= change
    if change := {name: value for name, value in now.items() if latest.get(name) != value}:
        resumed[str(step)] = change
    return first | ({RESUMED: resumed} if resumed else {})


def resume(directory: Path, step: int, now: Mapping[str, Any]) -> list[str]:
    """Write down that a run goes on in this environment; which parts of it are others than before."""
    path = directory / ENVIRONMENT
    try:
        recorded = read_json(path)
    except (OSError, ValueError):
        recorded = {}  # lost or damaged: better today's than none
    changed = amended(recorded, step, now)
    if changed != recorded:
        write_json(path, changed)
    return list(changed.get(RESUMED, {}).get(str(step), {}))


def devices(environment: Mapping[str, Any]) -> list[str]:
    """The kinds of device that a run had, in order."""
    changes = environment.get(RESUMED)
    stages = [environment, *(changes.values() if isinstance(changes, Mapping) else ())]
    found = [stage.get("device") for stage in stages if isinstance(stage, Mapping)]
    return list(dict.fromkeys(str(one.get("kind")) for one in found if isinstance(one, Mapping)))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit(root: Path) -> dict[str, Any] | None:
    """Of the code at `root`: of the checkout that it is, or of the one that it was copied from."""
    if found := _git(root):
        return found
    try:
        return read_json(root / "sphere" / COMMIT)
    except (OSError, ValueError):
        return None


def _git(root: Path) -> dict[str, Any] | None:
    """The commit of the checkout at `root`; None if it is no checkout, or a folder inside another one."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=GIT_SECONDS).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return None
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None
