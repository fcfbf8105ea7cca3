"""Which groups may use the cores: as many as fill them, those that are furthest behind first.

All groups at once would share the cores evenly. Then the group whose steps cost most is the last in every iteration.
Sooner or later all others wait for it, and it alone does not fill the machine.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush


class Turns:
    def __init__(self, places: int):
        self._free = places
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int]] = []
        self._arrivals = 0

    @contextmanager
    def taken(self, done: int) -> Iterator[None]:
        """Hold a place. Of the groups that wait, the one with the fewest iterations (`done`) gets the next."""
        with self._changed:
            self._arrivals += 1
            mine = (done, self._arrivals)
            heappush(self._waiting, mine)
            self._changed.wait_for(lambda: self._free and self._waiting[0] == mine)
            heappop(self._waiting)
            self._free -= 1
            self._changed.notify_all()  # there may be another place for the next one
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
