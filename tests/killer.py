"""Harm a process of a run in the middle of its work: python -m tests.killer FILE PROCESS ANCESTOR [SIGNAL]

Waits for a file that matches the pattern FILE, then sends the signal (default: KILL) to one process in whose command
line PROCESS is found and that descends from the process ANCESTOR, and prints its number.
"""

import glob
import os
import signal
import sys
import time

import psutil

GIVE_UP_AFTER = 150.0


def harm(file: str, process: str, ancestor: int, number: signal.Signals) -> int:
    deadline = time.monotonic() + GIVE_UP_AFTER
    while time.monotonic() < deadline:
        if glob.glob(file):
            for found in psutil.Process(ancestor).children(recursive=True):
                try:
                    if found.pid != os.getpid() and process in " ".join(found.cmdline()):
                        found.send_signal(number)
                        return found.pid
                except psutil.NoSuchProcess:
                    continue
        time.sleep(0.005)
    raise SystemExit(f"nothing to harm: no {file}, or no process {process} below {ancestor}")


if __name__ == "__main__":
    print(harm(sys.argv[1], sys.argv[2], int(sys.argv[3]), signal.Signals[f"SIG{(sys.argv[4:] or ['KILL'])[0]}"]))
