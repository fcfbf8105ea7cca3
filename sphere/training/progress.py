"""What a person sees while runs are going: one live line on a terminal, plain lines elsewhere."""

import sys
import time
from typing import TextIO


def clock(seconds: float) -> str:
    minutes, hours = int(seconds // 60) % 60, int(seconds // 3600)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


class Progress:
    """`advance` after every iteration, `say` for lines that stay."""

    def __init__(self, total_steps: int, done_steps: int = 0, stream: TextIO | None = None, quiet: bool = False):
        self.stream = stream or sys.stderr
        self.live = self.stream.isatty() and not quiet
        self.quiet = quiet
        self.total, self.done = total_steps, done_steps
        self.started = self.ended = time.monotonic()
        self.first = done_steps
        self.warm = False
        self.facts: dict[str, float] = {}

    @property
    def speed(self) -> float:
        """Environment steps per second of the whole fleet, with evaluation, without the first iteration, which
        compiles."""
        return (self.done - self.first) / max(time.monotonic() - self.started, 1e-9)

    def advance(self, task: str, done_steps: int) -> None:
        if not self.warm and self.done > self.first:  # one iteration is over: from here on it is the usual speed
            self.warm, self.started, self.first = True, self.ended, self.done
        self.done, self.ended = done_steps, time.monotonic()
        if not self.live:
            return
        part = self.done / self.total
        left = (self.total - self.done) / max(self.speed, 1e-9)
        bar = "█" * int(20 * part) + "·" * (20 - int(20 * part))
        facts = "  ".join(f"{name} {value:.3g}" for name, value in self.facts.items())
        line = f"{bar} {part:4.0%}  {task}  {self.speed:,.0f} steps/s  {facts}  {clock(left)} left"
        self._write(f"\r\x1b[2K{line}")

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
