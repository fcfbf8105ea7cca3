"""The recordings that come with the package are the ones that were recorded: nothing there is made by this program."""

import hashlib
import re
import tomllib
from pathlib import Path

from sphere.cli.verify import GOLDEN

ROOT = Path(__file__).resolve().parents[1]
LISTED = dict(reversed(line.split()) for line in (GOLDEN / "SHA256SUMS").read_text().splitlines())


def test_every_recording_is_listed_and_as_it_was_recorded():
    """The list is that of `sha256sum`: `cd sphere/golden && sha256sum --check SHA256SUMS`."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in GOLDEN.glob("*.npz")}
    assert found == LISTED


def test_the_readme_beside_them_describes_each_and_nothing_else():
    text = (GOLDEN / "README.md").read_text()
    assert set(re.findall(r"^## (\S+\.npz):", text, re.MULTILINE)) == set(LISTED)
    assert "nothing here is to be\nregenerated from this project's own code" in text


def test_an_installed_package_has_them():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["sphere"]
    packed = {path.name for pattern in data for path in (ROOT / "sphere").glob(pattern) if path.parent == GOLDEN}
    assert packed == {*LISTED, "README.md", "SHA256SUMS"}
