"""An ensemble: members side by side in one run, one score."""

import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow.parquet as pq
import pytest

import elias_ray
from elias_ray import pipeline
from elias_ray.artifacts import CONFIG, CONFIG_MARK, Folder
from elias_ray.errors import UserError
from elias_ray.plan import Plan
from tests import examples
from tests.examples import settings

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(300)]


def plans(count: int) -> list[Plan]:
    return [cast(Plan, SimpleNamespace(member=number + 1)) for number in range(count)]


def test_members_train_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    together, trained = threading.Barrier(2), []

    def train(member: Plan) -> None:
        together.wait(timeout=30)  # nobody gets on alone
        trained.append(member.member)

    monkeypatch.setattr(pipeline, "train_member", train)
    pipeline.train_members(plans(4), at_once=2)
    assert sorted(trained) == [1, 2, 3, 4]


def test_a_member_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, trained = threading.Event(), []

    def train(member: Plan) -> None:
        trained.append(member.member)
        if member.member == 1:
            raise UserError("no good")
        assert ended.wait(timeout=30)  # as work on Ray would fail without it

    monkeypatch.setattr(pipeline, "train_member", train)
    monkeypatch.setattr("ray.shutdown", ended.set)
    with pytest.raises(UserError, match="no good"):
        pipeline.train_members(plans(5), at_once=2)
    assert 1 in trained
    assert len(trained) <= 3


def rows(folder: Path) -> list[dict[int, float]]:
    tables = [pq.read_table(file).to_pylist() for file in sorted(folder.glob("*.parquet"))]
    return [dict(zip(row["labels"], row["scores"], strict=True)) for table in tables for row in table]


def test_two_members(trained: Path, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)  # the first is trained
    first = (run / "member1/stage2/model/manifest.json").read_bytes()
    config = settings(data, "ensemble.members=2")
    (run / CONFIG).write_text(f"{CONFIG_MARK}\n{config.to_yaml()}")
    pipeline.train(Folder.at(run), config)
    assert (run / "member1/stage2/model/manifest.json").read_bytes() == first
    clusters = [
        pq.read_table(run / f"member{number}/clusters/clusters.parquet")["cluster"].to_pylist() for number in (1, 2)
    ]
    assert clusters[0] != clusters[1]
    united = rows(run / "ensemble")
    members = [rows(run / f"member{number}/calibration/predictions/test") for number in (1, 2)]
    assert len(united) == 10
    for point, found in enumerate(united):
        labels = {label for member in members for label in member[point]}
        assert found == pytest.approx(
            {label: np.mean([member[point].get(label, 0) for member in members]) for label in labels}, rel=1e-5
        )
        assert list(found.values()) == sorted(found.values(), reverse=True)
    assert list(json.loads((run / "metrics.json").read_text())) == [
        *("stage1", "stage2", "ranker", "calibrated", "ensemble")
    ]
    assert "an ensemble of 2" in (run / "report/index.html").read_text()
    names = elias_ray.load(run).predict([point.text for point in examples.TEST], top_k=8, explain=True)
    for predictions, found in zip(names, united, strict=True):
        assert [prediction.label for prediction in predictions] == [examples.LABELS[label] for label in found]
        assert {path.member for prediction in predictions for path in prediction.paths or ()} == {1, 2}
