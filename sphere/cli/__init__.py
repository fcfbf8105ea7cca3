"""The command line: one file for each command or two, `main.py` for finding it and for what a mistake looks like."""
