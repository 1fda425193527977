"""Processes that are killed in the middle of a stage: it goes on where its last checkpoint is, to the same model."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elias_ray import pipeline
from elias_ray.artifacts import Folder
from elias_ray.config import Config
from elias_ray.plan import plans_of_members
from elias_ray.prepare import prepare
from tests.examples import settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]

# Long enough to be killed in, and a checkpoint wherever there can be one.
LONGER = (
    *("training.batch_size=2", "stage1.frozen_epochs=4", "encoder.dropout=0.3", "stage1.average_from=0.2"),
    *("checkpoints.minutes=0", "checkpoints.keep=4"),
)
KILLED_BEHIND = 20  # of some 60 steps
WORKER = "ray::_RayTrainWorker"


def copy_of(trained: Path, folder: Path) -> Path:
    """What stands before stage 1, without it."""
    for part in ("prepare", "embeddings", "member1/clusters"):
        shutil.copytree(trained / part, folder / part)
    return folder


def train_stage1(run: Path, config: Config) -> None:
    folder = Folder.at(run)
    pipeline.train_stage(plans_of_members(folder, config, prepare(folder, config))[0].stage("stage1"))


def killer(run: Path, process: str, name: str = "KILL") -> "subprocess.Popen[str]":
    """Behind the step; in a process of its own."""
    checkpoints = f"{run}/member1/stage1/checkpoints/000000[{KILLED_BEHIND // 10}-9][0-9]/manifest.json"
    command = [sys.executable, "-m", "tests.killer", checkpoints, process, str(os.getpid()), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def tables(run: Path) -> dict[str, torch.Tensor]:
    model, found = run / "member1/stage1/model", {}
    for name in ("W_C", "W_L", "A"):
        parts = [load_file(file) for file in sorted(model.glob(f"{name}*.safetensors"))]
        found.update({f"{name}.{key}": torch.cat([part[key] for part in parts]) for key in parts[0]})
    return found


def history(run: Path) -> list[tuple[int, int, float]]:
    entries = json.loads((run / "member1/stage1/model/history.json").read_text())
    return [(entry["epoch"], entry["step"], entry["loss"]) for entry in entries]


@pytest.fixture(scope="module")
def undisturbed(trained: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = copy_of(trained, tmp_path_factory.mktemp("undisturbed"))
    train_stage1(run, settings(data, *LONGER, "resources.workers=2"))
    assert not (run / "member1/stage1/checkpoints").exists()
    return run


def test_a_killed_worker_costs_no_more_than_the_steps_behind_a_checkpoint(
    undisturbed: Path, trained: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_of(trained, tmp_path / "run")
    with killer(run, WORKER) as killing:
        train_stage1(run, settings(data, *LONGER, "resources.workers=2"))
    assert killing.returncode == 0
    said = capsys.readouterr().out
    assert re.search(r"stage 1: its workers were lost \(.+\); starting them again, 1 of 3 times", said), said
    behind = int(re.search(r"stage 1: going on behind step (\d+)", said)[1])  # type: ignore[index]
    assert behind >= KILLED_BEHIND
    lost = re.search(r"; (\d+) steps are done again", said)
    assert lost is None or int(lost[1]) <= 10  # every second step can have one, each is written meanwhile
    expected = tables(undisturbed)
    for name, value in tables(run).items():
        assert torch.equal(value, expected[name]), name
    assert history(run) == history(undisturbed)
    assert len(list((run / "member1/tensorboard/stage1").glob("events*"))) == 2


def test_a_killed_job_goes_on_with_fewer_workers_from_the_last_checkpoint_that_is_whole(
    undisturbed: Path,
    trained: Path,
    data: Path,
    tmp_path: Path,
    ray_session: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = copy_of(trained, tmp_path / "run")
    script = (
        "import ray, sys; from pathlib import Path; from tests.pipeline.test_faults import *; "
        "ray.init(log_to_driver=False, logging_level='error'); "
        "train_stage1(Path(sys.argv[1]), settings(Path(sys.argv[2]), *LONGER, 'resources.workers=2'))"
    )
    command = [sys.executable, "-c", script, str(run), str(data)]
    with killer(run, str(run)) as killing:
        job = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": ray_session}, stdout=subprocess.DEVNULL)
        assert job.wait(timeout=200) == -signal.SIGKILL
    assert killing.returncode == 0
    found = sorted(
        folder for folder in (run / "member1/stage1/checkpoints").iterdir() if (folder / "manifest.json").exists()
    )
    assert len(found) >= 4
    file = "W_L-0000000000-0000000004.safetensors"
    truncated, flipped, missing = (folder / file for folder in reversed(found[-3:]))
    truncated.write_bytes(truncated.read_bytes()[:-1])
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    missing.unlink()
    capsys.readouterr()
    train_stage1(run, settings(data, *LONGER, "resources.workers=1"))
    said = capsys.readouterr().out
    passed_over = re.findall(r"a checkpoint is passed over: (.+)", said)
    assert [str(path) in line for path, line in zip((truncated, flipped, missing), passed_over, strict=True)] == [
        True
    ] * 3
    assert f"going on behind step {int(found[-4].name)}," in said
    expected = tables(undisturbed)
    for name, value in tables(run).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5, msg=name)
    for mine, theirs in zip(history(run), history(undisturbed), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
