"""What a person sees while runs are going: one live line on a terminal, plain lines elsewhere."""

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

COMPILING = "compiling, once for each fleet: seconds for small networks, a minute or two for large ones"


def clock(seconds: float) -> str:
    minutes, hours = int(seconds // 60) % 60, int(seconds // 3600)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def command(*words: object) -> str:
    """A command of this program that can be pasted: with `sphere`, or with the way to it where the virtual environment
    is not active."""
    python = Path(sys.executable)
    script, known = python.with_name("sphere"), shutil.which("sphere")
    start: list[object] = [script] if script.exists() else [python, "-m", "sphere"]
    if known and script.exists() and os.path.samefile(known, script):
        start = ["sphere"]
    elif (first := Path(str(start[0]))).is_relative_to(Path.cwd()):
        start[0] = first.relative_to(Path.cwd())
    return shlex.join(map(str, [*start, *words]))


class Progress:
    """`start` before the first iteration, `advance` after every one, `say` for lines that stay."""

    def __init__(self, total_steps: int, done_steps: int = 0, stream: TextIO | None = None, quiet: bool = False):
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty() and not quiet
        self.quiet = quiet
        self.total, self.done = total_steps, done_steps
        self.started = self.ended = time.monotonic()
        self.first = done_steps
        self.warm = self.evaluated = False
        self.task = ""
        self.facts: dict[str, float] = {}

    def start(self) -> None:
        """Nothing has been trained yet in this process: the first iteration compiles."""
        if self.done < self.total:
            self._write(f"\r\x1b[2K{COMPILING}") if self.live else self.say(COMPILING)

    @property
    def speed(self) -> float | None:
        """Steps per second of the whole fleet, with evaluation. What compiles does not count: the first iteration and
        the first evaluation. None as long as there is nothing else."""
        if not self.warm or self.done == self.first:
            return None
        return (self.done - self.first) / max(self.ended - self.started, 1e-9)

    def advance(self, task: str, done_steps: int) -> None:
        if task != self.task:
            self.task, self.facts = task, {}  # a task is not told with the score of the one before
        self.done, self.ended = done_steps, time.monotonic()
        if not self.warm:
            self._from_here()
        self._draw()

    def evaluation(self, facts: dict[str, float]) -> None:
        """How each method does on the task in training, to be seen until the next evaluation."""
        self.facts = facts
        if not self.evaluated:  # it has compiled the diagnostics
            self.evaluated = True
            self._from_here()
        self._draw()

    def _from_here(self) -> None:
        """The usual speed begins."""
        self.warm, self.started, self.first = True, time.monotonic(), self.done

    def _draw(self) -> None:
        if not self.live:
            return
        part, speed = self.done / self.total, self.speed
        bar = "█" * int(20 * part) + "·" * (20 - int(20 * part))
        facts = "".join(f"  {name} {value:.2f}" for name, value in self.facts.items())
        left = "" if speed is None else f"  {speed:,.0f} steps/s  {clock((self.total - self.done) / speed)} left"
        line = f"{bar} {part:4.0%}  {self.task}{facts}{left}"
        self._write(f"\r\x1b[2K{line[: shutil.get_terminal_size().columns - 1]}")  # a line that wraps stays behind

    def say(self, line: str) -> None:
        if self.quiet:
            return
        self._write(("\r\x1b[2K" if self.live else "") + line + "\n")

    def close(self) -> None:
        if self.live:
            self._write("\n")

    def _write(self, text: str) -> None:
        """A terminal that was closed, or a full disk behind a pipe, ends no training: it is only not told any more."""
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.quiet, self.live = True, False
