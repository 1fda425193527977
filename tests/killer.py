"""Harm a process of a run in the middle of its work: python -m tests.killer FILE PROCESS ANCESTOR [SIGNAL [WITHOUT]]

Waits for a file that matches the pattern FILE, then sends the signal (default: KILL) to one process in whose command
line PROCESS is found and that descends from the process ANCESTOR, and prints its number. WITHOUT names a file that must
not be there yet beside FILE: the process is made to stand still until that is certain.
"""

import glob
import os
import signal
import sys
import time
from pathlib import Path

import psutil

GIVE_UP_AFTER = 150.0


def harm(file: str, process: str, ancestor: int, number: signal.Signals, without: str = "") -> int:
    deadline = time.monotonic() + GIVE_UP_AFTER
    while time.monotonic() < deadline:
        for found in _processes(process, ancestor) if _is_there(file, without) else ():
            try:
                found.suspend()
                if _is_there(file, without):
                    found.send_signal(number)
                    return found.pid
                found.resume()
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.005)
    raise SystemExit(f"nothing to harm: no {file} without {without}, or no process {process} below {ancestor}")


def _is_there(file: str, without: str) -> bool:
    return any(not without or not Path(path).with_name(without).exists() for path in glob.glob(file))


def _processes(process: str, ancestor: int) -> list[psutil.Process]:
    found = []
    for candidate in psutil.Process(ancestor).children(recursive=True):
        try:
            if candidate.pid != os.getpid() and process in " ".join(candidate.cmdline()):
                found.append(candidate)
        except psutil.NoSuchProcess:
            continue
    return found


if __name__ == "__main__":
    name, without = [*sys.argv[4:], *["KILL", ""][len(sys.argv[4:]) :]]
    print(harm(sys.argv[1], sys.argv[2], int(sys.argv[3]), signal.Signals[f"SIG{name}"], without))
