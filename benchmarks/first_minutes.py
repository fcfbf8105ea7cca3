"""The README's commands in a fresh clone, timed: `python -m benchmarks.first_minutes [--no-tests]`.

From the clone to the page that compares three methods, then the demo and the tests. What is committed counts; what is
changed in the working tree does not. Packages come from wherever pip gets them here.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import kept

COMPARE = (
    "sphere train --preset probe-crl --tasks reach-north reach-east "
    "--method none sphere layernorm --seeds 0 1 2 --out runs/compare"
)
COMMANDS = ["make setup", COMPARE, "sphere report runs/compare -o report", "make demo", "make test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-tests", action="store_true", help="without make test, which takes longest")
    kept.add_option(parser)
    options = parser.parse_args()
    table = kept.Table({"command": "", "seconds": ",.0f", "in all": ",.0f"})
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "sphere"
        subprocess.run(["git", "clone", "--quiet", kept.ROOT, clone], check=True)
        env = os.environ | {"PATH": f"{clone}/.venv/bin:{os.environ['PATH']}"}
        for command in COMMANDS[: -1 if options.no_tests else None]:
            start = time.perf_counter()
            done = subprocess.run(command, shell=True, cwd=clone, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                parser.exit(1, f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}\n")
            now = time.perf_counter()
            table.add(f"`{' '.join(command.split()[:2])}`", now - start, now - begun)
    kept.keep(table, options.keep, "CPU")


if __name__ == "__main__":
    main()
