"""`make package`: build sdist and wheel, look into them, and try the wheel as somebody who has nothing else.

The wheel is built from the sdist. It is installed without extras into a new environment, away from the checkout, and
its commands are run there; mypy checks a program of a user against its types.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "build" / "dist"
LIMITS = {"wheel": 8 * 2**20, "sdist": 15 * 2**20}
NOT_IN_SDIST = (".ci/", ".gitignore")
MADE = ("PKG-INFO", "setup.cfg")
"""What building adds to an sdist."""

CLEAN = {name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH", "VIRTUAL_ENV")}
USE = """\
import sphere
from sphere import ntk
from sphere.nets import NetConfig

reveal_type(sphere.sphere_penalty)
reveal_type(NetConfig(kind="top-k").experts)
NetConfig(experts="ten")
ntk.no_such_function
"""
"""A program of a user with two mistakes."""


def run(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """What a command says; if it fails, that ends everything."""
    print("+", *(str(word).removeprefix(f"{ROOT}/") for word in words), flush=True)
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}\nmake package: this command failed: {' '.join(map(str, words))}")
    return done.stdout


def tracked() -> set[str]:
    return set(run("git", "-C", ROOT, "ls-files").splitlines())


def same(what: str, found: set[str], wanted: set[str]) -> None:
    if missing := sorted(wanted - found):
        sys.exit(f"make package: the {what} lacks {missing[:20]}; see MANIFEST.in and package-data in pyproject.toml")
    if more := sorted(found - wanted):
        sys.exit(f"make package: the {what} holds what git does not know: {more[:20]}")


def built() -> tuple[Path, Path]:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def look(sdist: Path, wheel: Path) -> None:
    """The sdist has all files of the checkout, the wheel those of the package, and neither has others."""
    files = tracked()
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    names = {name for name in names if name not in MADE and ".egg-info/" not in name}
    same("sdist", names, {name for name in files if not name.startswith(NOT_IN_SDIST)})
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    same("wheel", names, {name for name in files if name.startswith("sphere/")})
    for what, path in (("sdist", sdist), ("wheel", wheel)):
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {size / 2**20:.1f} MiB")
        if size > LIMITS[what]:
            sys.exit(f"make package: the {what} is larger than the {LIMITS[what] / 2**20:.0f} MiB that it may have")


def environment(folder: Path, wheel: Path) -> Path:
    """The bin directory of a new virtual environment with the wheel and what it asks for. No extras, no pip."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    run(*pip, "install", "--quiet", "--no-compile", wheel)
    run(*pip, "check")
    return folder / "bin"


def try_commands(place: Path, bin: Path, version: str) -> None:
    """As a user would, in an empty directory."""

    def sphere(*words: object) -> str:
        return run(bin / "sphere", *words, cwd=place, env=CLEAN)

    where = run(bin / "python", "-c", "import sphere; print(sphere.__file__)", cwd=place, env=CLEAN)
    assert Path(where.strip()).is_relative_to(bin.parent), where
    assert sphere("--version") == f"sphere {version}\n"
    few = ("--tasks", "probe/reach-east", "--steps-per-task", 512, "--workers", 0, "--quiet")
    sphere("train", "--preset", "probe-crl", *few, "--seeds", 0, 1, "--rho", 0.1, "--out", "runs/first")
    sphere("report", "runs/first", "--out", "report")
    assert (place / "report" / "index.html").is_file()
    assert list((place / "report" / "figures").iterdir())
    print(sphere("verify", "update").splitlines()[-1])


def try_types(place: Path, bin: Path) -> None:
    (place / "mine.py").write_text(USE)
    words = [sys.executable, "-m", "mypy", "--python-executable", bin / "python", "--cache-dir", place / "mypy"]
    print("+ mypy mine.py", flush=True)
    done = subprocess.run(
        [*map(str, words), "mine.py"], cwd=place, env=CLEAN, capture_output=True, text=True, check=False
    )
    for wanted in (
        'mine.py:5: note: Revealed type is "def (phi: ',
        'mine.py:6: note: Revealed type is "int"',
        'mine.py:7: error: Argument "experts" to "NetConfig" has incompatible type "str"; expected "int"',
        'mine.py:8: error: Module has no attribute "no_such_function"',
        "Found 2 errors in 1 file",
    ):
        if wanted not in done.stdout.replace("builtins.", ""):
            sys.exit(f"{done.stdout}{done.stderr}\nmake package: mypy did not say: {wanted}")


def main() -> None:
    start = time.monotonic()
    sdist, wheel = built()
    look(sdist, wheel)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "empty"
        place.mkdir()
        bin = environment(Path(folder) / "venv", wheel)
        try_commands(place, bin, wheel.name.split("-")[1])
        try_types(place, bin)
    print(f"the package works; {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
