"""`python -m sphere`."""

from sphere.cli import run

if __name__ == "__main__":
    run()
