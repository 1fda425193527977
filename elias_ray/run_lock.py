"""One job at a time writes into a run: a file in it says which, and that it is alive.

Works on any filesystem. A job on this host is asked for, so one that was killed can be started again at once; one on
another host is watched until it gives a sign of life, or LOST_AFTER seconds have gone by without any.
"""

import fcntl
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pyarrow import fs

from elias_ray.artifacts import LOCK, Folder
from elias_ray.errors import UserError

BEAT_EVERY, LOST_AFTER = 20.0, 120.0  # seconds
SETTLED_AFTER = 3.0  # on an object store, of two that start at the same moment, the later to write has it


class InUseError(UserError):
    """By another job."""


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
    def is_here(self) -> bool:
        return (self.host, self.boot) == (socket.gethostname(), _boot())

    @property
    def runs_here(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process)
            same = abs(process.create_time() - self.began) < 2  # the clock that it is told by may be set meanwhile
            return same and process.status() != psutil.STATUS_ZOMBIE
        return False


@contextmanager
def owning(run: Folder) -> Iterator[None]:
    """For the body, nobody else may write there."""
    try:
        run.create()
    except OSError as error:
        raise UserError(f"cannot use {run.path} as the folder of a run: {error}") from None
    lost = _holder(run)
    if lost is not None and (lost.runs_here if lost.is_here else _gives_signs_of_life(run, lost)):
        raise _taken(run, lost)
    mine = Holder.this()
    with _alone(run):
        holder = _holder(run)
        if holder is not None and holder != lost:  # another was quicker
            raise _taken(run, holder)
        _write(run, mine)
    if not isinstance(run.filesystem, fs.LocalFileSystem):
        time.sleep(SETTLED_AFTER)
        holder = _holder(run)
        if holder is not None and holder.token != mine.token:
            raise _taken(run, holder)
    ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(run, mine, ended), daemon=True)
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join(timeout=BEAT_EVERY)  # or its last one might come behind the end
        holder = _holder(run)
        if holder is not None and holder.token == mine.token:
            run.remove(LOCK)


@contextmanager
def waiting_for(folder: Folder) -> Iterator[None]:
    """Owning it, as soon as whoever does is through or lost."""
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(owning(folder))
                break
            except InUseError:
                time.sleep(1)
        yield


@contextmanager
def _alone(run: Folder) -> Iterator[None]:
    """Among all who want to own it, where it is a folder on a disk."""
    if not isinstance(run.filesystem, fs.LocalFileSystem):
        yield
        return
    folder = os.open(run.path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _beat(run: Folder, mine: Holder, ended: threading.Event) -> None:
    while not ended.wait(BEAT_EVERY):
        holder = None
        with suppress(OSError):
            holder = _holder(run)
        if holder is not None and holder.token != mine.token:
            print(f"error: {run.path} was taken over by process {holder.process} on {holder.host}", file=sys.stderr)
            os._exit(1)  # not to write another byte; what is committed is there
        with suppress(OSError, UserError):  # a full disk, a store out of reach: the work itself will tell
            _write(run, mine)


def _gives_signs_of_life(run: Folder, holder: Holder) -> bool:
    print(f"{run.path} was in use by process {holder.process} on {holder.host}: waiting for a sign of life", flush=True)
    deadline = time.monotonic() + LOST_AFTER
    while time.monotonic() < deadline:
        time.sleep(BEAT_EVERY / 4)
        now = _holder(run)
        if now is None:
            return False
        if now != holder:
            return True
    return False


def _holder(run: Folder) -> Holder | None:
    try:
        return Holder(**json.loads(run.read(LOCK)))
    except (FileNotFoundError, ValueError, TypeError):  # none, or nothing that makes sense
        return None


def _write(run: Folder, holder: Holder) -> None:
    run.write(LOCK, json.dumps({**asdict(holder), "beat": time.time()}).encode())


def _taken(run: Folder, holder: Holder) -> InUseError:
    return InUseError(
        f"{run.path} is in use: process {holder.process} on {holder.host} writes there; wait for it, or use another "
        f"--run folder"
    )


def _boot() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return str(psutil.boot_time())
