"""`python -m sphere`."""

from sphere.cli.main import run

if __name__ == "__main__":
    run()
