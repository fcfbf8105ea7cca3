"""Pages of the documentation, carried out: their commands and their code, in the order in which they stand."""

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fleets
import processes

from sphere.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

TINY = {
    "train": "--steps-per-task 256 --checkpoint-every 2 --ppo.num-envs 4 --ppo.rollout-steps 16 --ppo.batch-size 32 "
    "--ppo.epochs 2 --ppo.actor.width 8 --ppo.actor.depth 1 --ppo.critic.width 8 --ppo.critic.depth 1 "
    "--evaluation.every 128 --evaluation.episodes 3 --evaluation.heldout 16 --workers 0",
    "report": "--no-figures",
}
"""What is added to a command so that it takes seconds; whatever else it says is kept."""
KILLED_AFTER = 5
"""Iterations of a training in the background."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of everything between fences."""
    return FENCE.findall(page.read_text())


def extras() -> set[str]:
    import tomllib

    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))


@dataclass
class Reader:
    """Somebody who pastes what a page says, line by line, into a shell and a Python in `directory`."""

    directory: Path
    names: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """The commands, as they stand on the page."""

    def read(self, page: Path) -> None:
        for language, text in blocks(page):
            if language == "python":
                exec(compile(text, str(page), "exec"), self.names)
            elif language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    self.paste(line)

    def paste(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if not words:
            return
        self.said.append(line)
        match words:
            case ["make", target]:
                assert target in targets(), line
            case ["pip", "install", what]:
                named = re.fullmatch(r"(?:\.|sphere-rl|jax)(?:\[([\w,-]+)\])?", what)
                assert named, line
                assert what.startswith("jax") or set(filter(None, (named[1] or "").split(","))) <= extras(), line
            case [".", ".venv/bin/activate"]:
                pass
            case ["sphere", *rest, "&"]:
                self.begin(rest)
            case ["until", "ls", checkpoint, *_] if "/checkpoint-" in checkpoint:
                processes.until(lambda: self.hold.reached(self.directory / self.out), self.process)
            case ["kill", "-9", "$!"]:
                os.kill(self.process.pid, signal.SIGKILL)
                self.process.wait()
                processes.end(self.process)
                self.hold.release()
            case ["sphere", *rest]:
                assert main(shortened(rest)) == 0, line
            case _:
                raise AssertionError(f"a command that the tests do not know: {line}")

    def begin(self, words: list[str]) -> None:
        """In a process of its own, which waits before its end so that it can be killed in the middle."""
        self.out = words[words.index("--out") + 1]
        self.hold = fleets.Hold(self.directory / "hold", KILLED_AFTER)
        self.process = processes.start(
            [sys.executable, "-m", "sphere", *shortened(words)],
            env={**os.environ, **self.hold.environment},
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def shortened(words: list[str]) -> list[str]:
    return [*words, *TINY.get(words[0], "").split()]
