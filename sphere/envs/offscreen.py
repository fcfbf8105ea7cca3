"""MuJoCo's own renderer without a display: through EGL or, where that does not work, OSMesa."""

import functools
import os
import subprocess
import sys
from typing import Any, NamedTuple

LIBRARIES = {"egl": "EGL (Debian: libegl1, libgl1)", "osmesa": "OSMesa (Debian: libosmesa6)"}

PROBE = """
from mujoco.{name} import GLContext
context = GLContext(8, 8)
context.make_current()
from OpenGL import GL
print(GL.glGetString(GL.GL_RENDERER).decode())
"""


class NoPictures(RuntimeError):
    """Off-screen rendering does not work on this machine."""


class Platform(NamedTuple):
    name: str
    """As in MUJOCO_GL."""
    device: str
    """What draws, by its own name; llvmpipe is a CPU."""


@functools.cache
def platform() -> Platform:
    """The first that draws here, tried in a process of its own: one that fails may crash, and stays in use. What
    MUJOCO_GL names is taken if it is set; else it is set to what was found, for worker processes too."""
    named = os.environ.get("MUJOCO_GL", "").lower()
    failures = []
    for name in (named,) if named else tuple(LIBRARIES):
        code, environment = PROBE.format(name=name), os.environ | {"MUJOCO_GL": name}
        ask = [sys.executable, "-c", code]
        done = subprocess.run(ask, check=False, env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            os.environ["MUJOCO_GL"] = name
            return Platform(name, done.stdout.strip())
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        failures.append(f"{name}: {why}")
    set_to = f"MUJOCO_GL is {named!r}; unset it, or " if named else ""
    raise NoPictures(
        f"pictures cannot be drawn off-screen here ({'; '.join(failures)}); {set_to}install PyOpenGL and "
        f"{' or '.join(LIBRARIES.values())}"
    )


def renderer(mujoco: Any, model: Any, height: int, width: int) -> Any:
    """Off-screen, through what MUJOCO_GL names; by default EGL."""
    try:
        name = os.environ.get("MUJOCO_GL", "egl").lower()
        if name == "egl":
            from mujoco import egl as chosen
        elif name == "osmesa":
            from mujoco import osmesa as chosen
        else:
            chosen = None
        if chosen is not None:  # mujoco itself looks at MUJOCO_GL only while it is imported
            from mujoco import gl_context

            gl_context.GLContext = chosen.GLContext
        return mujoco.Renderer(model, height, width)
    except (ImportError, AttributeError, RuntimeError) as error:  # no binding, no library, no driver
        hint = f"install PyOpenGL and {' or '.join(LIBRARIES.values())}; for the latter set MUJOCO_GL=osmesa"
        raise NoPictures(f"pictures cannot be drawn off-screen here: {error}; {hint}") from error
