"""The sparse ranker on actors: what one process would train, whatever is killed on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from pecos.xmc.base import MLModel, MLProblem

from elias_ray.artifacts import CONFIG, CONFIG_MARK, Folder
from elias_ray.config import Config
from elias_ray.data import read_vectors
from elias_ray.errors import UserError
from elias_ray.features import psi
from elias_ray.final_scores import read_calibration
from elias_ray.plan import Plan, plans_of_members
from elias_ray.predictions import Lists, read_predictions, write_predictions
from elias_ray.prepare import prepare
from elias_ray.ranker_blocks import Inputs, cut_into_blocks, inputs_of, train_ranker
from elias_ray.sparse_ranker import Classifiers, read_ranker
from elias_ray.workers import alone
from tests import examples
from tests.examples import settings

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(200)]

# LIBLINEAR as slow as we like on these few points: it is never content, so a block takes about a second.
SLOW = (
    "ranker.loss=logistic",
    "ranker.tolerance=1e-30",
    "ranker.iterations=60000",
    "resources.ranker_pairs_per_block=1",
)


def member(run: Path, config: Config) -> Plan:
    return plans_of_members(Folder.at(run), config, prepare(Folder.at(run), config))[0]


def without_ranker(trained: Path, run: Path) -> Path:
    shutil.copytree(trained, run)
    for name in ("ranker", "calibration"):
        shutil.rmtree(run / "member1" / name)
    return run


def weights(run: Path) -> sp.csr_matrix:
    """(F, L), in the order of the labels."""
    ranker = read_ranker(Folder.at(run) / "member1/ranker", alone())
    return ranker.weights_FB[:, np.argsort(ranker.labels_B)]


def blocks_committed(run: Path) -> dict[str, int]:
    """Name -> when."""
    found = (run / "member1/ranker/blocks").glob("*/manifest.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_equals_libpecos_in_one_process(trained: Path, data: Path) -> None:
    plan = member(trained, settings(data))
    inputs = inputs_of(plan)
    assert len(blocks_committed(trained)) == len(cut_into_blocks(plan, inputs)) > 3
    shards = list(plan.prepared.shards("train"))
    vectors = np.concatenate([read_vectors(inputs.embeddings["train"], shard) for shard in shards])
    psi_NF, positives_NL = psi(plan.prepared.tfidf("train"), vectors), plan.prepared.labels("train")
    lists = [read_predictions(inputs.predictions["train"], shard) for shard in shards]
    predicted_NL = sp.vstack([part.matrix(8, np.ones(len(part.labels_Q))) for part in lists])
    candidates_NL = ((predicted_NL + positives_NL) > 0).astype(np.float32)
    assert 0 < candidates_NL.nnz < np.prod(candidates_NL.shape)
    problem = MLProblem(psi_NF, positives_NL.astype(np.float32), sp.identity(8, np.float32, "csc"), candidates_NL)
    ranker = plan.config.ranker
    expected = MLModel.train(
        problem, threshold=ranker.least_weight, Cp=ranker.cost, Cn=ranker.cost, bias=-1.0, threads=1
    ).W
    np.testing.assert_array_equal(weights(trained).toarray(), expected.toarray())


def test_every_prediction_has_q_and_a_final_score(trained: Path, data: Path) -> None:
    plan = member(trained, settings(data))
    ranker, calibration = read_ranker(plan.ranker, alone()), read_calibration(plan.calibration)
    whole = Classifiers(np.arange(8, dtype=np.int32), sp.csc_matrix(weights(trained)))
    assert sorted(ranker.labels_B.tolist()) == list(range(8))
    for shard in plan.prepared.shards("test"):
        name = Path(shard).name
        dense = pq.read_table(trained / "member1/stage2/predictions/test" / name).to_pylist()
        ranked = pq.read_table(trained / "member1/ranker/predictions/test" / name).to_pylist()
        final = pq.read_table(trained / "member1/calibration/predictions/test" / name).to_pylist()
        psi_NF = inputs_of(plan).psi_of_shard("test", shard, np.arange(len(dense)))
        for row, (before, between, after) in enumerate(zip(dense, ranked, final, strict=True)):
            labels = np.array(before["labels"])
            assert before["row"] == between["row"] == after["row"]
            assert before["labels"] == between["labels"]
            assert before["scores"] == between["p"]
            q = whole.scores(psi_NF, np.full(len(labels), row), labels)
            assert between["q"] == pytest.approx(q.tolist(), rel=1e-6)
            p = np.array(between["p"], np.float32)
            assert between["scores"] == pytest.approx((p * q).tolist(), rel=1e-6)
            scores = calibration.scores(p, q, plan.prepared.label_frequency_L[labels])
            expected = sorted(zip(labels.tolist(), scores.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
            assert after["labels"] == [label for label, _ in expected]
            assert after["scores"] == pytest.approx([score for _, score in expected], rel=1e-6)


def test_calibration_is_fitted_on_validation_points_alone(trained: Path, data: Path) -> None:
    facts = json.loads((trained / "member1/calibration/model/manifest.json").read_text())
    files = (trained / "member1/ranker/predictions/validation").glob("*.parquet")
    assert facts["pairs"] == sum(len(row) for file in files for row in pq.read_table(file)["labels"]) > 0


def test_a_killed_actor_costs_one_block(trained: Path, data: Path, tmp_path: Path) -> None:
    config = settings(data, *SLOW)
    undisturbed = without_ranker(trained, tmp_path / "undisturbed")
    train_ranker(member(undisturbed, config))
    run = without_ranker(trained, tmp_path / "run")
    killed: list[int] = []
    before: dict[str, int] = {}

    def kill_an_actor() -> None:
        wait_for(lambda: len(blocks_committed(run)) >= 1)
        before.update(blocks_committed(run))
        actors = [
            p.pid for p in psutil.process_iter(["cmdline"]) if "ray::BlockTrainer" in (p.info["cmdline"] or [""])[0]
        ]
        os.kill(actors[0], signal.SIGKILL)
        killed.append(actors[0])

    killer = threading.Thread(target=kill_an_actor)
    killer.start()
    train_ranker(member(run, config))
    killer.join()
    assert len(killed) == 1
    after = blocks_committed(run)
    assert len(after) == 8
    assert {name: after[name] for name in before} == before
    np.testing.assert_array_equal(weights(run).toarray(), weights(undisturbed).toarray())


def test_a_killed_job_goes_on_with_the_blocks_that_are_left(
    trained: Path, data: Path, tmp_path: Path, ray_session: str
) -> None:
    run = without_ranker(trained, tmp_path / "run")
    config = settings(data, *SLOW)
    (run / CONFIG).write_text(f"{CONFIG_MARK}\n{config.to_yaml()}")
    changes = (*examples.SETTINGS, *SLOW, "resources.ranker_actors=1")
    command = [sys.executable, "jobs/train.py", "--data", str(data), "--run", str(run), *changes]
    environment = {**os.environ, "RAY_ADDRESS": ray_session}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as job:
        wait_for(lambda: len(blocks_committed(run)) >= 2, seconds=90)
        job.kill()
    before = blocks_committed(run)
    assert 2 <= len(before) < 8
    again = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    after = blocks_committed(run)
    assert len(after) == 8
    assert {name: after[name] for name in before} == before
    undisturbed = without_ranker(trained, tmp_path / "undisturbed")
    train_ranker(member(undisturbed, config))
    np.testing.assert_array_equal(weights(run).toarray(), weights(undisturbed).toarray())


def test_more_actors_than_there_are_cpus_for(trained: Path, data: Path, tmp_path: Path) -> None:
    run = without_ranker(trained, tmp_path / "run")
    config = settings(data, "resources.ranker_actors=7", "resources.ranker_pairs_per_block=1")
    train_ranker(member(run, config))
    np.testing.assert_array_equal(weights(run).toarray(), weights(trained).toarray())
    assert len(blocks_committed(run)) == 8
    train_ranker(member(run, settings(data)))  # as it is there, in whatever blocks
    assert len(blocks_committed(run)) == 8
    shutil.rmtree(run / "member1/ranker/model")  # but as it was not through
    train_ranker(member(run, settings(data)))
    assert len(blocks_committed(run)) == len(blocks_committed(trained)) < 8


def test_a_label_that_does_not_count_teaches_nothing(tmp_path: Path) -> None:
    examples.xc_json(tmp_path / "data")
    config = settings(tmp_path / "data")
    prepared = prepare(Folder.at(tmp_path / "run"), config)
    filtered, shards = {(0, 1), (3, 7), (3, 2)}, list(prepared.shards("train"))
    predictions = Folder.at(tmp_path / "predictions")
    predictions.create()
    seen: set[tuple[int, int]] = set()
    for shard in shards:
        rows = prepared.shards("train")[shard]
        every = Lists(np.full(rows, 8), np.tile(np.arange(8, dtype=np.int32), rows), {})
        write_predictions(predictions, prepared, shard, every)
        inputs = Inputs(prepared, {"train": predictions}, {})
        numbers = prepared.folder.read_table(shard, ["row"])["row"].to_pylist()
        missing = np.argwhere(inputs.candidates_of_shard(shard).toarray() == 0)
        seen |= {(numbers[point], int(label)) for point, label in missing}
    positives = {(row, label) for row, point in enumerate(examples.TRAIN) for label in point.labels}
    trained_on = {n for shard in shards for n in prepared.folder.read_table(shard, ["row"])["row"].to_pylist()}
    assert seen == {pair for pair in filtered - positives if pair[0] in trained_on}
    assert seen


def test_too_little_memory_is_refused_with_numbers(trained: Path, data: Path, tmp_path: Path) -> None:
    run = without_ranker(trained, tmp_path / "run")
    with pytest.raises(UserError, match=r"takes 1 CPUs and 1000000.0 GiB, which no node has"):
        train_ranker(member(run, settings(data, "resources.ranker_memory=1e6")))
