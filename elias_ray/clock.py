"""Where the time of a step goes: `with timed("search"): ...` anywhere below the training loop.

Wall time of this process, so on a GPU the part that waits for the device carries what others left to it.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

_seconds: defaultdict[str, float] = defaultdict(float)


@contextmanager
def timed(part: str) -> Iterator[None]:
    started = time.perf_counter()
    try:
        yield
    finally:
        _seconds[part] += time.perf_counter() - started


def take() -> dict[str, float]:
    """Seconds of each part since the last call."""
    taken = dict(_seconds)
    _seconds.clear()
    return taken
