"""How learner and worker tell each other that a step is wanted or done: counters in shared memory, and a byte for a sleeper.

While both are awake, a step costs no system call. Whoever has waited for a while says that it goes to sleep and waits on a
pipe; the other then sends a byte along. Between "I sleep" and the last look a wish may slip through, so who has just fallen
asleep looks again after some milliseconds.

Only where stores become visible in order (x86): elsewhere a counter might arrive before the data that it announces.
"""

import mmap
import os
import platform
import time
from collections.abc import Callable
from typing import Any

IN_ORDER = platform.machine() in ("x86_64", "AMD64")
SIZE = 128
"""Bytes of a bell: what each side writes has a cache line of its own."""

ASKED, LEARNER_SLEEPS, DONE, WORKER_SLEEPS = 0, 1, 8, 9

LOOKS = 100
"""Looks at a counter between two offers of the core to others; together about ten microseconds."""

FIRST_NAP, NAP = 0.005, 1.0
"""Seconds after which a sleeper looks again, the first time and later."""


class Bell:
    """The bell of worker `index` in a file of bells."""

    def __init__(self, file: int, index: int) -> None:
        whole = mmap.mmap(file, os.fstat(file).st_size)
        self.words = memoryview(whole).cast("q")[index * SIZE // 8 : (index + 1) * SIZE // 8]

    def ask(self) -> bool:
        """Want a step; whether the worker sleeps and needs a byte."""
        self.words[ASKED] += 1
        return bool(self.words[WORKER_SLEEPS])

    def asked(self) -> bool:
        return self.words[ASKED] != self.words[DONE]

    def answer(self) -> bool:
        """The step is done; whether the learner sleeps and needs a byte."""
        self.words[DONE] += 1
        return bool(self.words[LEARNER_SLEEPS])

    def wait(self, asked: bool, seconds: float, interrupted: Callable[[], object] = lambda: False) -> bool:
        """Awake until a step is asked for (`asked`) or done (not `asked`); False if that takes too long or something comes."""
        words = self.words
        end = time.perf_counter() + seconds
        while True:
            for _ in range(LOOKS):
                if (words[ASKED] != words[DONE]) == asked:
                    return True
            if interrupted() or time.perf_counter() > end:
                return False
            os.sched_yield()

    def sleep(self, asked: bool, pipe: Any, seconds: float) -> bool | None:
        """The same asleep: True when it is so, None when the pipe has something to read, False after `seconds`."""
        who = WORKER_SLEEPS if asked else LEARNER_SLEEPS  # the one waits for wishes, the other for their end
        end = time.monotonic() + seconds
        nap = FIRST_NAP
        self.words[who] = 1
        try:
            while self.asked() != asked:
                if pipe.poll(1000 * min(nap, seconds)):
                    return None
                if time.monotonic() > end:
                    return False
                nap = NAP
            return True
        finally:
            self.words[who] = 0
