"""Killed in every step, on a full disk, with a worker that hangs: each time the run gets to the same end."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.examples import SETTINGS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
KILLED_AT = (  # a file that is there in the middle of the step
    ("prepare", "prepare/scratch"),
    ("stage 1", "member1/stage1/checkpoints/*/manifest.json"),
    ("adjacency", "member1/adjacency"),
    ("stage 2", "member1/stage2/checkpoints/*/manifest.json"),
    ("predict", "member1/stage2/predictions/validation/manifest.json"),
    ("ranker", "member1/ranker/blocks/*/manifest.json"),
)


def train(data: Path, run: Path, *changes: str) -> "subprocess.Popen[str]":
    """With a Ray of its own."""
    arguments = ["--data", str(data), "--run", str(run), *SETTINGS, "checkpoints.minutes=0", *changes]
    environment = {**os.environ, "RAY_ADDRESS": ""}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "jobs/train.py"), *arguments],
        **{"env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},  # type: ignore[call-overload]
    )


def kill_at(file: str, job: "subprocess.Popen[str]", process: str = "jobs/train.py", name: str = "KILL") -> None:
    command = [sys.executable, "-m", "tests.killer", file, process, str(os.getpid()), name]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_killed_in_every_step(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step, file in KILLED_AT:
        job = train(data, run)
        kill_at(f"{run}/{file}", job)
        said, _ = job.communicate(timeout=60)
        assert job.returncode == -signal.SIGKILL, f"{step}: {said[-2000:]}"
        assert not (run / "metrics.json").exists()
    job = train(data, run)
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said[-2000:]
    assert (run / "metrics.json").read_bytes() == (trained / "metrics.json").read_bytes()


def test_a_worker_that_hangs_is_noticed(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = train(data, run, "resources.hung_after=15", "training.batch_size=2", "stage1.frozen_epochs=10")
    kill_at(f"{run}/member1/stage1/checkpoints/*/manifest.json", job, "ray::RayTrainWorker", "STOP")
    stopped = time.monotonic()
    assert job.stdout is not None
    for line in job.stdout:
        if "its workers were lost" in line:
            break
    assert time.monotonic() - stopped < 15 + 45, "two questions of Ray Train's, and ending the others"
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 0, said[-2000:]
    assert re.search(r"stage 1: going on behind step \d+", said)


def test_a_full_disk_is_told_and_nothing_is_lost(trained: Path, data: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", disk]).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        run = disk / "run"
        full = train(data, run)
        said, _ = full.communicate(timeout=300)
        assert full.returncode == 1
        assert re.search(r"^error: .*: no space left for its [\d,]+ bytes; free some", said.splitlines()[-1]), said[
            -2000:
        ]
        subprocess.run(["mount", "-o", "remount,size=600m", disk], check=True)
        again = train(data, run)
        said, _ = again.communicate(timeout=300)
        assert again.returncode == 0, said[-2000:]
        assert "prepare: done before" in said
        assert (run / "metrics.json").read_bytes() == (trained / "metrics.json").read_bytes()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_two_jobs_into_one_run(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "member1/ranker")
    first = train(data, run)
    while not (run / "lock.json").exists():
        assert first.poll() is None
        time.sleep(0.05)
    second = train(data, run)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1
    assert re.search(rf"error: {run} is in use: process {first.pid} on ", said)
    said, _ = first.communicate(timeout=300)
    assert first.returncode == 0, said[-2000:]
