"""Training across several hosts, one of which is lost and comes back."""

import glob
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cluster.several_hosts import RAY, Cluster, several_hosts
from tests.cluster.test_every_step import KILLED_AT
from tests.examples import SETTINGS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
TWO_WORKERS = ("checkpoints.minutes=0.02", "resources.workers=2", "resources.worker_cpus=0.6")  # one on each host
# An epoch begins slowly where hosts have one CPU, so few of them, of many steps.
LONG = (
    *TWO_WORKERS,
    "training.batch_size=2",
    "data.rows_per_shard=64",
    "stage1.frozen_epochs=3",
    "encoder.dropout=0.3",
)


def train(cluster: Cluster, data: Path, run: Path, *changes: str) -> "subprocess.Popen[str]":
    arguments = ["--data", str(data), "--run", str(run), *SETTINGS, *changes]
    command = [sys.executable, str(ROOT / "jobs/train.py"), *arguments]
    return cluster.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def newest_checkpoint(run: Path) -> tuple[int, int]:
    """Its step, and how many workers wrote it."""
    for file in sorted(glob.glob(f"{run}/member1/stage1/checkpoints/*/manifest.json"), reverse=True):
        try:
            facts = json.loads(Path(file).read_text())
            return facts["progress"]["steps_of_stage"], facts["workers"]
        except (OSError, ValueError):  # just deleted
            continue
    return 0, 0


def is_there(pattern: str) -> bool:
    return bool(glob.glob(pattern))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def label_classifiers(run: Path) -> torch.Tensor:
    files = sorted((run / "member1/stage2/model").glob("W_L-*"))
    return torch.cat([load_file(file)["weight"] for file in files])


def test_a_host_is_lost_and_comes_back(much_data: Path, tmp_path: Path) -> None:
    with several_hosts(2) as cluster:
        undisturbed = train(cluster, much_data, tmp_path / "undisturbed", *LONG, "checkpoints.minutes=1000")
        said, _ = undisturbed.communicate(timeout=600)
        assert undisturbed.returncode == 0, said[-3000:]
        run = tmp_path / "run"
        job = train(cluster, much_data, run, *LONG, "resources.least_workers=1", "resources.hung_after=30")
        try:
            wait_until(lambda: newest_checkpoint(run)[0] >= 50, "a checkpoint of two workers")
            lost = cluster.workers[1]
            lost.kill()
            behind, workers = newest_checkpoint(run)
            assert workers == 2
            wait_until(lambda: newest_checkpoint(run)[1] == 1, "a checkpoint of one worker alone")
            assert newest_checkpoint(run)[0] > behind
            cluster.start_worker(lost)
            wait_until(lambda: newest_checkpoint(run)[1] == 2, "a checkpoint of two workers again")
            said, _ = job.communicate(timeout=600)
        finally:
            job.kill()
        assert job.returncode == 0, said[-3000:]
        assert "its workers were lost" in said
        assert (run / "metrics.json").read_bytes() == (tmp_path / "undisturbed/metrics.json").read_bytes()
        torch.testing.assert_close(
            label_classifiers(run), label_classifiers(tmp_path / "undisturbed"), rtol=1e-4, atol=1e-4
        )


def test_a_host_is_lost_in_every_step(trained: Path, data: Path, tmp_path: Path) -> None:
    """One job, which waits for the host each time."""
    run = tmp_path / "run"
    with several_hosts(2) as cluster:
        job = train(cluster, data, run, *TWO_WORKERS, "checkpoints.minutes=0", "resources.hung_after=30")
        try:
            for number, (step, file) in enumerate(KILLED_AT):
                wait_until(partial(is_there, f"{run}/{file}"), step)
                lost = cluster.workers[number % 2]
                lost.kill()
                time.sleep(2)
                cluster.start_worker(lost)
            said, _ = job.communicate(timeout=300)
        finally:
            job.kill()
        assert job.returncode == 0, said[-3000:]
        found, expected = (json.loads((folder / "metrics.json").read_text()) for folder in (run, trained))
        for row, figures in expected.items():
            assert found[row] == pytest.approx(figures), row


def test_a_host_that_will_be_taken_away(much_data: Path, tmp_path: Path) -> None:
    """Without any other reason for a checkpoint."""
    run = tmp_path / "run"
    with several_hosts(2) as cluster:
        job = train(cluster, much_data, run, *LONG, "stage1.frozen_epochs=100", "checkpoints.minutes=1000")
        try:
            wait_until((run / "member1/tensorboard/stage1").exists, "stage 1")
            host = cluster.workers[0]
            script = f"from cluster.spot_notice import drain; drain(60, {RAY!r})"
            # RAY_ADDRESS: Ray looks for a cluster of this machine where it keeps its files, which hosts do not share.
            environment = {**host.environment, "RAY_ADDRESS": cluster.address}
            command = [*host.inside, sys.executable, "-c", script]
            subprocess.run(command, env=environment, check=True, timeout=60, cwd=ROOT)
            wait_until(lambda: newest_checkpoint(run)[0] > 0, "a checkpoint", 60)
        finally:
            job.kill()
            said, _ = job.communicate()
        assert "stage 1: 1 of its nodes will be taken away; checkpoint" in said
