"""One job at a time writes into a run: a file in it says which, and that it is alive.

Works on any filesystem, so by the clock: a job on another host that has not been heard of for LOST_AFTER seconds is
taken for dead. One on this host is asked for, so a job that was killed can be started again at once.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from elias_ray.artifacts import Folder
from elias_ray.errors import UserError

LOCK = "lock.json"
BEAT_EVERY, LOST_AFTER = 20.0, 120.0  # seconds
SETTLED_AFTER = 0.3  # of two that start at the same moment, the later to write has it


@dataclass(frozen=True)
class Holder:
    host: str
    boot: str  # of the machine, since many are called localhost
    process: int
    began: float
    token: str
    beat: float  # when it was last heard of

    @classmethod
    def this(cls) -> "Holder":
        began = psutil.Process().create_time()
        return cls(socket.gethostname(), _boot(), os.getpid(), began, uuid.uuid4().hex, time.time())

    @property
    def alive(self) -> bool:
        if (self.host, self.boot) != (socket.gethostname(), _boot()):
            return time.time() - self.beat < LOST_AFTER
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process)
            return process.create_time() == self.began and process.status() != psutil.STATUS_ZOMBIE
        return False


@contextmanager
def owning(run: Folder) -> Iterator[None]:
    """For the body, nobody else may write there."""
    holder = _holder(run)
    if holder is not None and holder.alive:
        raise _taken(run, holder)
    mine = Holder.this()
    _write(run, mine)
    time.sleep(SETTLED_AFTER)
    holder = _holder(run)
    if holder is not None and holder.token != mine.token:
        raise _taken(run, holder)
    ended = threading.Event()
    threading.Thread(target=_beat, args=(run, mine, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        holder = _holder(run)
        if holder is not None and holder.token == mine.token:
            run.remove(LOCK)


def _beat(run: Folder, mine: Holder, ended: threading.Event) -> None:
    while not ended.wait(BEAT_EVERY):
        holder = _holder(run)
        if holder is not None and holder.token != mine.token:
            print(
                f"error: {run.path} has been taken over by process {holder.process} on {holder.host}", file=sys.stderr
            )
            os.kill(os.getpid(), signal.SIGINT)
            return
        with suppress(OSError):  # a full disk, a store out of reach: the work itself will tell
            _write(run, mine)


def _holder(run: Folder) -> Holder | None:
    try:
        return Holder(**json.loads(run.read(LOCK)))
    except (OSError, ValueError, TypeError):  # none, or not to be read
        return None


def _write(run: Folder, holder: Holder) -> None:
    run.write(LOCK, json.dumps({**asdict(holder), "beat": time.time()}).encode())


def _taken(run: Folder, holder: Holder) -> UserError:
    return UserError(
        f"{run.path} is in use: process {holder.process} on {holder.host} writes there, last heard of "
        f"{max(0.0, time.time() - holder.beat):.0f} s ago; wait for it, or use another --run folder "
        f"(a job whose host is gone is given up {LOST_AFTER:.0f} s after it was last heard of)"
    )


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return str(psutil.boot_time())
