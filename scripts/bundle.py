"""`make bundle PY=3.12`: a folder, and an archive of it, with all that a machine needs that has jax and nothing else,
not even a network.

There: tar xf bundle.tar.xz; PYTHONPATH=bundle python3 -m sphere train --preset metaworld-crl ...

jax brings numpy and scipy. Of metaworld's 41 MB only the models of the ten CW10 tasks are kept, with the meshes and
textures they name; of mujoco, not its headers and samples. Figures (matplotlib) and films (imageio) are made elsewhere.

`make bundle WARP=1` makes a second folder, bundle-warp, with what GPU simulators need: MuJoCo 3.17 and Warp, without
Warp's compiler for CPUs. Its archive is in parts, because some places take no large files. Simulator processes have
MuJoCo 3.3.0 from the first folder:
there: cat bundle-warp.tar.xz.* | tar xJ; SPHERE_WORKER_PATH=bundle PYTHONPATH=bundle-warp:bundle python3 -m sphere
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gpu_programs

from sphere.storage import provenance
from sphere.storage.files import write_json

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 60 * 2**20
PART = 50 * 2**20
"""Bytes of a part of an archive."""

PACKAGES = """
    absl-py cloudpickle docstring-parser equinox etils farama-notifications fsspec glfw gymnasium h5py imageio jaxtyping
    importlib-resources metaworld==3.1.1 minari==0.5.4 mujoco==3.3.0 optax packaging pillow typeguard typing-extensions
    tyro wadler-lindig zipp
""".split()
"""What `sphere` and its suites import, without jax, numpy and scipy."""

WARP_PACKAGES = ["mujoco==3.17.0", "mujoco-mjx==3.17.0", "mujoco-warp==3.17.0", "warp-lang==1.18.0", "trimesh"]
"""Of the extra `warp`, what the other folder lacks, and what draws pixels."""

TEST_PACKAGES = """
    beartype contourpy cycler execnet fonttools grpcio hypothesis iniconfig joblib kiwisolver markdown markupsafe
    matplotlib narwhals pillow pluggy protobuf pygments pyparsing pytest pytest-xdist python-dateutil scikit-learn six
    sortedcontainers submitit tensorboard tensorboard-data-server threadpoolctl werkzeug
""".split()
"""What the tests import besides, without Ray and a browser: their tests are skipped there."""

TASKS = """
    hammer push_wall faucet_close push_back stick_pull handle_press_side push shelf_place window_close peg_unplug_side
""".split()
"""metaworld's names of the CW10 tasks: env modules sawyer_NAME_v3.py."""

UNUSED = (
    "bin", "*.dist-info/RECORD", "**/__pycache__", "mujoco/include", "mujoco/mjx", "mujoco/plugin", "mujoco/testdata",
    "mujoco/sample", "mujoco/simulate", "mujoco/bin", "gymnasium/envs/mujoco/assets", "gymnasium/envs/toy_text/img",
    "gymnasium/envs/box2d", "h5py/tests", "PIL/_avif*", "PIL/_imagingcms*", "PIL/_imagingft*", "PIL/_webp*",
    *(f"pillow.libs/lib{name}*" for name in ("avif", "brotli", "freetype", "harfbuzz", "lcms2", "png", "sharpyuv",
      "webp")),
)  # fmt: skip
"""Of pillow, which Minari imports and does not use for numbers, only what it cannot be imported without."""


WARP_UNUSED = (
    "bin", "*.dist-info/RECORD", "**/__pycache__", "mujoco/include", "mujoco/experimental", "mujoco/plugin",
    "mujoco/sample", "mujoco/simulate", "mujoco/bin", "mujoco/mjx/test_data", "mujoco/mjx/integration_test",
    "mujoco/mjx/warp/*_test.py", "mujoco_warp/test_data", "mujoco_warp/_src/*_test.py", "warp/bin/warp-clang.so",
    "warp/examples", "warp/tests",
)  # fmt: skip


def install(folder: Path, python: str, packages: list[str]) -> None:
    platform = ["manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "any"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--target", str(folder), "--python-version", python, "--only-binary=:all:", "--no-compile"]
    command += [f"--platform={name}" for name in platform]
    done = subprocess.run([*command, *packages], check=False, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        sys.exit("\n".join([f"pip could not collect the packages for Python {python}:", *(errors or [done.stderr])]))


def named_files(model: Path, top: Path, found: set[Path]) -> None:
    """All files that a model names, and those that they name. Paths are relative to the model that is loaded."""
    found.add(model)
    for name in re.findall(r'file="([^"]+)"', model.read_text()):
        for base in (top, model.parent):
            path = (base / name).resolve()
            if path.is_file() and path not in found:
                found.add(path)
                if path.suffix == ".xml":
                    named_files(path, top, found)


def keep_only_models_of(tasks: list[str], package: Path) -> None:
    assets, keep = (package / "assets").resolve(), set[Path]()
    for task in tasks:
        (module,) = package.glob(f"envs/**/sawyer_{task}_v3.py")
        for name in re.findall(r'full_V3_path_for\(\s*"([^"]+)"', module.read_text()):
            named_files(assets / name, (assets / name).parent, keep)
    for path in assets.rglob("*"):
        if path.is_file() and path not in keep:
            path.unlink()


def remove(folder: Path, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        for path in list(folder.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def emptied(folder: Path, sign: str) -> Path:
    """A folder that is ours or empty, to be filled anew; `sign`: what a folder of ours holds."""
    if folder.exists():
        if not (folder / sign).is_dir() and any(folder.iterdir()):
            sys.exit(f"{folder} holds something else than a bundle; choose another --out")
        shutil.rmtree(folder)
    return folder


def warp(folder: Path, python: str, architecture: int | None) -> None:
    """What GPU simulators need, and an archive of it in parts."""
    install(emptied(folder, "warp"), python, WARP_PACKAGES)
    remove(folder, WARP_UNUSED)
    if architecture is not None:
        gpu_programs.keep(folder / "warp" / "bin" / "warp.so", architecture)
    archive = Path(shutil.make_archive(str(folder), "xztar", folder.parent, folder.name))
    for old in archive.parent.glob(f"{archive.name}.*"):
        old.unlink()
    whole = archive.read_bytes()
    for number, first in enumerate(range(0, len(whole), PART)):
        archive.with_name(f"{archive.name}.{number:02}").write_bytes(whole[first : first + PART])
    archive.unlink()
    print(f"{archive}.*: {len(whole) / 2**20:.1f} MiB for Python {python}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", default="3.12", help="version of Python on that machine")
    parser.add_argument("--out", type=Path, default=ROOT / "bundle", help="a folder that is replaced")
    parser.add_argument(
        "--tests", action="store_true", help="also what the tests need: python3 -m pytest in a checkout"
    )
    parser.add_argument("--warp", action="store_true", help="also what GPU simulators need, in a folder beside it")
    parser.add_argument("--arch", type=int, help="only for this GPU, half as large; 90: H100, H200")
    options = parser.parse_args()
    if options.warp:
        warp(options.out.with_name(f"{options.out.name}-warp"), options.python, options.arch)
    install(emptied(options.out, "sphere"), options.python, PACKAGES + (TEST_PACKAGES if options.tests else []))
    keep_only_models_of(TASKS, options.out / "metaworld")
    remove(options.out, UNUSED)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("sphere", "benchmarks"):
        shutil.copytree(ROOT / name, options.out / name, ignore=ignore)
    # of what was copied, which need not be what is imported here; runs will say so
    write_json(options.out / "sphere" / provenance.COMMIT, provenance.commit(ROOT))
    archive = Path(shutil.make_archive(str(options.out), "xztar", options.out.parent, options.out.name))
    size = archive.stat().st_size
    name = options.out.name
    print(f"{archive}: {size / 2**20:.1f} MiB for Python {options.python}")
    print(f"there: tar xf {archive.name}; PYTHONPATH={name} python3 -m sphere")
    if size > LIMIT:
        sys.exit(f"larger than the {LIMIT / 2**20:.0f} MiB that it may have")


if __name__ == "__main__":
    main()
