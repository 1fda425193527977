"""Both stages on Ray Train: the same for any number of workers, every row predicted once, resumed, refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from elias_ray import pipeline
from elias_ray.artifacts import Folder, committed
from elias_ray.config import Config
from elias_ray.data import Prepared
from elias_ray.encoder import Encoder
from elias_ray.errors import UserError
from elias_ray.plan import Plan, is_done, plans_of_members
from elias_ray.prepare import prepare
from elias_ray.stage import StageOnWorker
from elias_ray.worker_group import Worker, machine_memory
from elias_ray.workers import Workers, alone
from tests.examples import settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]


def train_stages(run: Path, config: Config) -> None:
    folder = Folder.at(run)
    pipeline.train_stages(plans_of_members(folder, config, prepare(folder, config))[0])


def predictions(run: Path, stage: str, split: str) -> list[dict[str, Any]]:
    files = sorted((run / "member1" / stage / "predictions" / split).glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def table(run: Path, stage: str, name: str) -> dict[str, torch.Tensor]:
    parts = [load_file(file) for file in sorted((run / "member1" / stage / "model").glob(f"{name}*.safetensors"))]
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def assert_same_predictions(run: Path, other: Path) -> None:
    for stage in ("stage1", "stage2"):
        for split in ("validation", "test"):
            mine, theirs = predictions(run, stage, split), predictions(other, stage, split)
            assert [row["row"] for row in mine] == [row["row"] for row in theirs]
            assert [row["labels"] for row in mine] == [row["labels"] for row in theirs]
            for a, b in zip(mine, theirs, strict=True):
                assert a["scores"] == pytest.approx(b["scores"], rel=1e-3, abs=1e-6)


def test_every_row_is_predicted_once_in_the_order_of_the_data(trained: Path) -> None:
    manifest = committed(Folder.at(trained) / "prepare")
    assert manifest is not None
    prepared = Prepared(Folder.at(trained) / "prepare", manifest.facts)
    for split, count in (("train", 27), ("validation", 3), ("test", 10)):
        rows = predictions(trained, "stage2", split)
        shards = [prepared.folder.read_table(shard, ["row"])["row"] for shard in prepared.shards(split)]  # type: ignore[arg-type]
        assert [row["row"] for row in rows] == [n for shard in shards for n in shard.to_pylist()]
        assert len(rows) == count
        for row in rows:
            assert len(row["labels"]) == len(set(row["labels"])) == len(row["scores"]) > 0
            assert row["scores"] == sorted(row["scores"], reverse=True)
            assert all(0 <= score <= 1 for score in row["scores"])


def test_what_a_stage_leaves(trained: Path) -> None:
    for stage in ("stage1", "stage2"):
        history = json.loads((trained / "member1" / stage / "model/history.json").read_text())
        assert [(entry["phase"], entry["epoch"]) for entry in history] == [("frozen", 1), ("frozen", 2)]
        assert history[-1]["loss"] < history[0]["loss"]
        assert {"encode", "search", "score", "loss", "backward", "update of the tables", "data wait"} <= set(
            history[0]["seconds_per_step"]
        )
        assert {"P@1", "P@5", "R@100"} <= set(history[0])
        assert len(list((trained / "member1/tensorboard" / stage).glob("events*"))) == 1
    edges = table(trained, "stage2", "A")
    assert set(edges["labels"].flatten().tolist()) - {-1} == set(range(8))  # no label is unreachable
    padded = edges["labels"] == -1
    assert edges["weights"][~padded].std() > 0
    assert (edges["weights"][padded] == -torch.inf).all()
    assert table(trained, "stage2", "W_L")["weight"].shape == (8, 384)


@pytest.mark.cluster
def test_two_workers_train_the_same_model(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_stages(run, settings(data, "resources.workers=2"))
    assert len(list((run / "member1/stage2/model").glob("W_L-*"))) == 2
    for stage in ("stage1", "stage2"):
        for name in ("W_C", "W_L", "A"):
            mine, theirs = table(run, stage, name), table(trained, stage, name)
            for key in mine:
                torch.testing.assert_close(mine[key], theirs[key], rtol=1e-4, atol=1e-4)
    assert_same_predictions(run, trained)


@pytest.mark.cluster
def test_three_workers_predict_from_the_model_that_one_trained(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "member1/stage2/predictions")
    model = (run / "member1/stage2/model/manifest.json").read_bytes()
    train_stages(run, settings(data, "resources.workers=3"))
    assert (run / "member1/stage2/model/manifest.json").read_bytes() == model
    assert_same_predictions(run, trained)


def test_a_stage_whose_input_has_changed_is_not_done(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    config = settings(data)
    prepared = prepare(Folder.at(run), config)
    stage2 = Plan(Folder.at(run), config, prepared, "stage2")
    assert is_done(stage2)
    manifest = json.loads((run / "member1/adjacency/manifest.json").read_text())
    (run / "member1/adjacency/manifest.json").write_text(json.dumps({**manifest, "edges": 0}))
    assert not is_done(stage2)


def test_reclustering_averaging_and_two_phases(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    changes = (
        *(
            "clusters.recluster_after=1",
            "stage2.label_classifiers=carried",
            "stage1.frozen_epochs=1",
            "stage1.epochs=1",
        ),
        *("stage1.average_from=0.5", "encoder.dropout=0.2", "training.zero_stage=1", "training.start=random"),
        *("stage2.frozen_epochs=1", "resources.workers=2"),
    )
    train_stages(run, settings(data, *changes))
    assert sorted(path.name for path in (run / "member1/embeddings").iterdir()) == ["stage1", "warmup"]
    assert (run / "member1/first_clusters").exists()
    assert len(predictions(run, "stage2", "test")) == 10
    before, after = (load_file(run / "member1" / stage / "model/encoder.safetensors") for stage in ("stage1", "stage2"))
    assert all(torch.equal(before[key], after[key]) for key in before)  # stage 2 was frozen
    pretrained = Encoder(settings(data).encoder.name, "mean", 0.0).state_dict()
    assert any(not torch.equal(pretrained[key], before[key]) for key in before)
    carried, moved = (table(run, stage, "W_L")["weight"] for stage in ("stage1", "stage2"))
    assert 0 < (carried - moved).abs().mean() < carried.abs().mean()
    history = json.loads((run / "member1/stage1/model/history.json").read_text())
    assert [entry["phase"] for entry in history] == ["frozen", "everything"]
    assert history[0]["bytes_sent_per_step"] > 0
    config = settings(data, *changes)
    assert is_done(Plan(Folder.at(run), config, prepare(Folder.at(run), config), "warmup"))


def test_a_loss_that_is_not_finite_names_the_batch(data: Path, tmp_path: Path) -> None:
    run = Folder.at(tmp_path / "run")
    config = settings(data, "stage1.lr_classifiers=1e36", "training.warmup=0")
    with pytest.raises(
        UserError, match=r"stage 1, frozen epoch \d/2, batch \d: the loss of step \d+ is .*rows \[\d+, "
    ):
        train_stages(tmp_path / "run", config)
    assert not (run / "member1" / "stage1" / "model").exists("manifest.json")


def test_what_does_not_fit_is_refused_with_numbers(trained: Path, data: Path) -> None:
    # A batch whose shortlists no machine could hold; nothing of that size is made before the plan is checked.
    config, run = settings(data, "training.batch_size=12000000000000"), Folder.at(trained)
    said: list[str] = []
    worker = Worker(alone(), torch.device("cpu"), local_size=1, messages=SimpleNamespace(put=said.append))
    stage = StageOnWorker(Plan(run, config, prepare(run, config), "stage2"), worker)
    with pytest.raises(UserError, match=r"stage 2 takes [\d.]+ GiB a worker, but there are [\d.]+ GiB for each; use"):
        stage.train()
    assert "shortlists of a batch" in said[0]


def test_more_workers_than_clusters_are_refused(trained: Path, data: Path) -> None:
    config, run = settings(data), Folder.at(trained)
    worker = Worker(Workers(rank=0, size=99), torch.device("cpu"), local_size=1, messages=SimpleNamespace())
    plan = Plan(run, config, prepare(run, config), "stage2")
    with pytest.raises(UserError, match=r"\d clusters are too few for 99 workers.*use resources.workers=\d or less"):
        StageOnWorker(plan, worker)


def test_memory_of_the_machine() -> None:
    assert 2**28 < machine_memory() < 2**50
