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
from elias_ray.plan import StageName, plans_of_members
from elias_ray.prepare import prepare
from tests.examples import ROOT, settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]

# Long enough to be killed in, 14 steps an epoch, and a checkpoint wherever there can be one.
LONGER = (
    *("training.batch_size=2", "encoder.dropout=0.3", "training.random_labels=5"),
    *("checkpoints.minutes=0", "checkpoints.keep=4"),
)
FROZEN = ("stage1.frozen_epochs=4", "stage2.frozen_epochs=4", "stage1.average_from=0.3", *LONGER)
# phi frozen and then trained, DeepSpeed's moments in parts. A checkpoint with phi takes longer: fewer of them.
TWO_PHASES = (
    *("stage1.frozen_epochs=1", "stage1.epochs=1", "training.zero_stage=1", "stage1.average_from=0.3"),
    *(*LONGER, "training.table_update_every=4", "checkpoints.asynchronous=false"),
)


def copy_of(trained: Path, folder: Path, *parts: str) -> Path:
    """What stands before the stage, without it."""
    for part in ("prepare", "embeddings", "member1/clusters", *parts):
        shutil.copytree(trained / part, folder / part)
    return folder


def train_stage(run: Path, stage: StageName, config: Config) -> None:
    folder = Folder.at(run)
    pipeline.train_stage(plans_of_members(folder, config, prepare(folder, config))[0].stage(stage))


def killer(run: Path, stage: StageName, steps: str, process: str, writing: bool = False) -> "subprocess.Popen[str]":
    """When there is a checkpoint behind one of the `steps`, or half of one; in a process of its own."""
    checkpoint = f"{run}/member1/{stage}/checkpoints/000000{steps}"
    command = [sys.executable, "-m", "tests.killer", f"{checkpoint}/manifest.json", process, str(os.getpid())]
    if writing:
        command[3] = f"{checkpoint}/*.safetensors"
        command += ["KILL", "manifest.json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def parameters(run: Path, stage: StageName) -> dict[str, torch.Tensor]:
    model, found = run / "member1" / stage / "model", {}
    for name in ("encoder", "W_C", "W_L", "A"):
        parts = [load_file(file) for file in sorted(model.glob(f"{name}*.safetensors"))]
        found.update({f"{name}.{key}": torch.cat([part[key] for part in parts]) for key in parts[0]})
    return found


def history(run: Path, stage: StageName) -> list[dict[str, float]]:
    entries = json.loads((run / "member1" / stage / "model/history.json").read_text())
    return [{key: entry[key] for key in ("epoch", "step", "loss", "P@1", "P@5", "R@100")} for entry in entries]


@pytest.mark.parametrize(
    ("changes", "steps"), [(FROZEN, "[2-9][0-9]"), pytest.param(TWO_PHASES, "2[0-9]", marks=pytest.mark.cluster)]
)
def test_a_worker_killed_while_it_writes_a_checkpoint_costs_the_steps_behind_the_one_before(
    changes: tuple[str, ...],
    steps: str,
    trained: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    undisturbed, run = (copy_of(trained, tmp_path / name) for name in ("undisturbed", "run"))
    config = settings(data, *changes, "resources.workers=2")
    train_stage(undisturbed, "stage1", config)
    assert not (undisturbed / "member1/stage1/checkpoints").exists()
    capsys.readouterr()
    with killer(run, "stage1", steps, "ray::RayTrainWorker", writing=True) as killing:
        train_stage(run, "stage1", config)
    assert killing.returncode == 0
    said = capsys.readouterr().out
    assert re.search(r"stage 1: its workers were lost \(.+\); starting them again, 1 of 3 times", said), said
    behind = re.search(r"stage 1: going on behind step (\d+), where its last checkpoint is(.*)", said)
    assert behind is not None
    assert int(behind[1]) >= 15
    done_again = re.search(r"; (\d+) steps are done again", behind[2])
    assert done_again is None or int(done_again[1]) <= 10  # each is written while a few more are done
    expected = parameters(undisturbed, "stage1")
    for name, value in parameters(run, "stage1").items():
        assert torch.equal(value, expected[name]), name
    assert history(run, "stage1") == history(undisturbed, "stage1")
    assert len(list((run / "member1/tensorboard/stage1").iterdir())) == 2


JOB = """
import ray, sys
from pathlib import Path
from tests.pipeline.test_faults import FROZEN, settings, train_stage
ray.init(log_to_driver=False, logging_level="error")
train_stage(Path(sys.argv[1]), "stage2", settings(Path(sys.argv[2]), *FROZEN, "resources.workers=2"))
"""


def test_a_killed_job_goes_on_with_fewer_workers_from_the_last_checkpoint_that_is_whole(
    trained: Path, data: Path, tmp_path: Path, ray_session: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ("member1/stage1", "member1/adjacency")
    undisturbed, run = (copy_of(trained, tmp_path / name, *before) for name in ("undisturbed", "run"))
    train_stage(undisturbed, "stage2", settings(data, *FROZEN))
    with killer(run, "stage2", "[2-9][0-9]", str(run)) as killing:
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(run), str(data)],
            env={**os.environ, "RAY_ADDRESS": ray_session},
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
        assert job.wait(timeout=200) == -signal.SIGKILL
    assert killing.returncode == 0
    checkpoints = sorted(file.parent for file in run.glob("member1/stage2/checkpoints/*/manifest.json"))
    assert len(checkpoints) >= 4
    truncated, flipped, missing = (
        folder / "W_L-0000000000-0000000004.safetensors" for folder in reversed(checkpoints[-3:])
    )
    truncated.write_bytes(truncated.read_bytes()[:-1])
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    missing.unlink()
    capsys.readouterr()
    train_stage(run, "stage2", settings(data, *FROZEN))
    said = capsys.readouterr().out
    passed_over = re.findall(r"a checkpoint is passed over: (.+)", said)
    for path, line in zip((truncated, flipped, missing), passed_over, strict=True):
        assert str(path) in line
    assert f"stage 2: going on behind step {int(checkpoints[-4].name)}," in said
    expected = parameters(undisturbed, "stage2")
    for name, value in parameters(run, "stage2").items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5, msg=name)
    for mine, theirs in zip(history(run, "stage2"), history(undisturbed, "stage2"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
