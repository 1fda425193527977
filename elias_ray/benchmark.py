"""ELIAS and its peers side by side: one run, one split, one table.

Each system is trained and asked in a process of its own, one after the other, and leaves its predictions in
`benchmark/NAME/`; one that is there is not trained again. One that fails is a row with the reason.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elias_ray.artifacts import Folder, committed, key_of
from elias_ray.memory import GIB
from elias_ray.peers import OURS, PEERS, System
from elias_ray.plan import Plan
from elias_ray.predictions import evaluate

RESULT, TABLE = "benchmark.json", "benchmark.md"
SECONDS_OF_A_BAR = 10.0  # until the next state of it goes into a log
SHOWN = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "R@10", "R@20", "R@100")
COSTS = {  # of a system, with what a figure of it is multiplied for the table
    "training_seconds": ("training min", 1 / 60, 1),
    "prediction_ms": ("prediction ms/point", 1, 2),
    "peak_memory": ("peak memory GiB", 1 / GIB, 2),
    "model_bytes": ("model MB", 1e-6, 0),
}


def benchmark(member: Plan, peers: Sequence[str], minutes: float) -> None:
    """`member` is the first of a run that is through."""
    run = member.run
    rows: dict[str, dict[str, Any]] = {}
    for name in (*peers, *OURS):
        rows[name] = row_of(member, name, (OURS | PEERS)[name], minutes)
        run.write(RESULT, json.dumps(rows, indent=1).encode())
    table = as_markdown(rows)
    run.write(TABLE, table.encode())
    print(f"\n{member.prepared.num_rows('test'):,} test points\n\n{table}\n{run.location}/{TABLE}, {RESULT}")


def row_of(member: Plan, name: str, system: System, minutes: float) -> dict[str, Any]:
    """Figures and costs of a system, measured now unless they were; or why there are none."""
    place, made_from, reason = place_of(member.run, name), made_from_of(member, name), ""
    if committed(place, made_from) is None:
        print(f"{system.title} ...", flush=True)
        reason = measure(member, name, system, minutes, made_from)
    if reason:
        print(f"{system.title}: {reason}", flush=True)
        return {"title": system.title, "failed": reason}
    manifest = committed(place, made_from)
    assert manifest is not None
    figures = evaluate(member.prepared, place, "test", member.config.metrics).result()
    print(f"{system.title}: P@1 {figures['P@1']:.2f}, R@100 {figures['R@100']:.2f}", flush=True)
    return {"title": system.title, **figures, **{key: manifest.facts[key] for key in (*COSTS, "remark")}}


def place_of(run: Folder, name: str) -> Folder:
    """The test predictions of a system."""
    return run / "benchmark" / name


def measured_peers(run: Folder) -> dict[str, dict[str, Any]]:
    """The rows of the other systems, by name, where they were measured."""
    rows = json.loads(run.read(RESULT)) if run.exists(RESULT) else {}
    return {name: row for name, row in rows.items() if name in PEERS and "failed" not in row}


def made_from_of(member: Plan, name: str) -> str:
    """Key of what a system is trained on or, if it is ours, of the model."""
    ours = [member.model, member.ranker / "model"] if name in OURS else []
    return key_of(member.prepared.folder, *ours)


def measure(member: Plan, name: str, system: System, minutes: float, made_from: str) -> str:
    """Empty, or why there is nothing."""
    environment = dict(os.environ)
    try:
        if system.packages:
            environment["PYTHONPATH"] = os.pathsep.join(
                [install(name, system.packages), *filter(None, [environment.get("PYTHONPATH")])]
            )
    except subprocess.CalledProcessError as error:
        return f"cannot install {' '.join(system.packages)}: {last_line(error.stderr)}"
    arguments = ["--run", member.run.location, "--threads", str(os.cpu_count() or 1)]
    arguments += ["--minutes", str(minutes), "--made-from", made_from]
    command = [sys.executable, "-m", "elias_ray.peers", name, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        started, timer = time.monotonic(), threading.Timer(60 * minutes, process.kill)
        if name not in OURS:
            timer.start()
        try:
            said = pass_on(process)
        finally:
            timer.cancel()
            process.kill()
    if name not in OURS and time.monotonic() - started >= 60 * minutes:
        return f"stopped after the {minutes:g} minutes of --budget"
    if process.returncode < 0:
        return f"killed by signal {-process.returncode}, perhaps for want of memory"
    return (last_line(said) or f"exit code {process.returncode}") if process.returncode else ""


def pass_on(process: "subprocess.Popen[bytes]") -> str:
    """What it tells the user, its progress for one, to the screen; and the end of it back, when it is through.

    Where the screen is a file, not every state of a bar that is drawn in place: Omikuji's alone would be megabytes.
    """
    assert process.stderr is not None
    said, next_bar = b"", 0.0
    while part := os.read(process.stderr.fileno(), 4096):
        said = (said + part)[-8192:]
        if sys.stderr.isatty() or b"\n" in part or time.monotonic() >= next_bar:
            sys.stderr.buffer.write(part)
            sys.stderr.flush()
            next_bar = time.monotonic() + SECONDS_OF_A_BAR
    process.wait()
    return said.decode(errors="replace")


def install(name: str, packages: Sequence[str]) -> str:
    """A folder of packages that come before ours: an environment of its own, within the one that we run in."""
    folder = Path(sys.prefix) / "peers" / "-".join([name, *packages])
    if not folder.exists():
        print(f"installing {' '.join(packages)} for {name} ...", flush=True)
        with tempfile.TemporaryDirectory(dir=sys.prefix) as beside:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--target", beside, *packages], check=True, capture_output=True, text=True)
            folder.parent.mkdir(exist_ok=True)
            os.rename(beside, folder)
            os.mkdir(beside)  # which is about to be removed
    return str(folder)


def last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else ""


def as_markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The best of each metric bold; a system that failed with its reason."""
    best = {metric: max((row.get(metric, -1.0) for row in rows.values()), default=-1.0) for metric in SHOWN}
    lines = [["", *SHOWN, *(title for title, _, _ in COSTS.values()), ""]]
    for row in rows.values():
        if "failed" in row:
            lines.append([row["title"], *[""] * (len(lines[0]) - 2), f"failed: {row['failed']}".replace("|", "/")])
            continue
        figures = [
            f"**{row[metric]:.2f}**" if row[metric] == best[metric] else f"{row[metric]:.2f}" for metric in SHOWN
        ]
        costs = [f"{row[cost] * scale:.{digits}f}" for cost, (_, scale, digits) in COSTS.items()]
        lines.append([row["title"], *figures, *costs, row["remark"]])
    return markdown(lines)


def markdown(lines: list[list[str]]) -> str:
    """A table; the first line is its head."""
    head, *others = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *others))
