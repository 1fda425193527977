"""What a run notes of its own making, for its report: the seconds of each step, and on what it ran."""

import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from elias_ray.artifacts import Folder

TIMES, HARDWARE = "times.json", "hardware.json"


@contextmanager
def timing(folder: Folder, step: str) -> Iterator[None]:
    """Around a step. One that was done before takes no time to speak of, so the longest time is kept."""
    started = time.monotonic()
    yield
    seconds, known = round(time.monotonic() - started, 1), read_times(folder)
    if step not in known or seconds > known[step]:
        folder.write(TIMES, json.dumps(known | {step: seconds}, indent=1).encode())


def read_times(folder: Folder) -> dict[str, float]:
    """Seconds by step."""
    with suppress(FileNotFoundError, ValueError):
        return dict(json.loads(folder.read(TIMES)))
    return {}


def record_hardware(run: Folder) -> None:
    """Of all nodes of the Ray that we are in, as they are now."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    found = {
        "nodes": len(nodes),
        "cpus": int(sum(node.get("CPU", 0) for node in nodes)),
        "gpus": int(sum(node.get("GPU", 0) for node in nodes)),
        "memory": int(sum(node.get("memory", 0) for node in nodes)),
        "processor": processor_name(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    run.write(HARDWARE, json.dumps(found, indent=1).encode())


def read_hardware(run: Folder) -> dict[str, Any] | None:
    with suppress(FileNotFoundError, ValueError):
        return dict(json.loads(run.read(HARDWARE)))
    return None


def processor_name() -> str:
    """Of the node that the job runs on."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    return platform.processor()
