"""New texts to label names: in Python, by the job, from an exported folder, whole and sharded."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import elias_ray
from elias_ray import predictor
from elias_ray.artifacts import Folder
from elias_ray.errors import UserError
from elias_ray.export import export
from elias_ray.plan import open_run
from elias_ray.predict_texts import Question, predict_file
from tests import examples
from tests.examples import job

TEXTS = [point.text for point in examples.TEST]
pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(200)]


def test_of_the_test_texts_what_the_run_predicted(trained: Path) -> None:
    found = elias_ray.load(trained).predict(TEXTS, top_k=100)
    files = sorted((trained / "member1/calibration/predictions/test").glob("*.parquet"))
    expected = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert len(found) == len(expected) == 10
    for predictions, row in zip(found, expected, strict=True):
        assert [prediction.label for prediction in predictions] == [examples.LABELS[label] for label in row["labels"]]
        assert [prediction.score for prediction in predictions] == pytest.approx(row["scores"], rel=1e-4)


def test_odd_texts(trained: Path) -> None:
    model = elias_ray.load(trained)
    assert model.predict([]) == []
    for found in model.predict(["", "words that nobody knows zzz", "ä" * 5000]):
        assert len(found) == 5
    with pytest.raises(UserError, match="a list of texts"):
        model.predict("one text")
    with pytest.raises(UserError, match="top_k=0"):
        model.predict(["text"], top_k=0)


def test_explanations_add_up(trained: Path) -> None:
    model = elias_ray.load(trained)
    for predictions in model.predict(TEXTS, explain=True):
        for prediction in predictions:
            assert prediction.paths
            assert prediction.p is not None
            assert prediction.p[0] is not None
            for path in prediction.paths:
                assert path.score == pytest.approx(path.cluster_score * path.edge_score)
                assert 1 <= len(path.about) <= 3
            # p = sigmoid(z) * y^, and y^ is the best path's score
            assert prediction.p[0] <= prediction.paths[0].score * (1 + 1e-5)


def test_pruning_and_what_a_run_keeps(trained: Path) -> None:
    whole = predictor.load(trained)
    pruned = predictor.load(trained, ["inference.edges_per_cluster=1"])
    edges = [(model.members[0].model.adjacency.labels >= 0).sum() for model in (whole, pruned)]
    assert 8 <= edges[1] < edges[0]
    assert len(pruned.predict(TEXTS)) == 10
    with pytest.raises(UserError, match=r"search.beam=1: a run keeps its config"):
        predictor.load(trained, ["search.beam=1"])


def test_what_cannot_predict(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(UserError, match="neither a run nor an exported model"):
        elias_ray.load(tmp_path)
    shutil.copytree(trained, tmp_path / "run")
    manifest = tmp_path / "run/member1/stage2/predictions/train/manifest.json"
    manifest.write_text(manifest.read_text() + " ")  # the ranker is of other predictions than these
    with pytest.raises(UserError, match="is not through yet"):
        elias_ray.load(tmp_path / "run")


def predict(run: Path, source: Path, output: Path) -> None:
    question = Question.of(str(run), (), top_k=2, explain=False)
    predict_file(question, open_run(run)[0].config, str(source), "title", str(output))


def answers(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_an_exported_model_needs_neither_ray_nor_the_run(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    export(str(tmp_path / "run"), Folder.at(tmp_path / "model"))
    expected = elias_ray.load(trained).predict(TEXTS, explain=True)
    shutil.rmtree(tmp_path / "run")
    shutil.move(tmp_path / "model", tmp_path / "elsewhere")
    files = {path.suffix for path in (tmp_path / "elsewhere").rglob("*") if path.is_file()}
    assert files == {".json", ".md", ".parquet", ".safetensors", ".yaml"}
    name = examples.settings(tmp_path).encoder.name
    config = (tmp_path / "elsewhere/config.yaml").read_text()
    (tmp_path / "elsewhere/config.yaml").write_text(config.replace(name, "an encoder that is not there"))
    card = (tmp_path / "elsewhere/README.md").read_text()
    assert "8 labels" in card
    assert "+ calibration" in card
    code = (
        "import json, sys, elias_ray\n"
        "found = elias_ray.load(sys.argv[1]).predict(json.loads(sys.argv[2]), explain=True)\n"
        "assert 'ray' not in sys.modules\n"
        "print(json.dumps([[prediction.as_dict() for prediction in row] for row in found]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "elsewhere"), json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == [[prediction.as_dict() for prediction in row] for row in expected]
    with pytest.raises(UserError, match="is not empty"):
        export(str(trained), Folder.at(tmp_path / "elsewhere"))


def test_files_of_lines_json_and_parquet(trained: Path, tmp_path: Path) -> None:
    expected = [
        [(prediction.label, pytest.approx(prediction.score, rel=1e-4)) for prediction in row]
        for row in elias_ray.load(trained).predict(TEXTS, top_k=2)
    ]
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
    (tmp_path / "texts.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"title": text}) + "\n" for text in TEXTS).encode())
    )
    pq.write_table(pa.table({"title": TEXTS}), tmp_path / "texts.parquet", row_group_size=4)
    for name, output in (("texts.txt", "out.jsonl"), ("texts.jsonl.gz", "out.jsonl"), ("texts.parquet", "out.parquet")):
        predict(trained, tmp_path / name, tmp_path / output)
        if output == "out.parquet":
            rows = pq.read_table(tmp_path / output).to_pylist()
            found = [list(zip(row["labels"], row["scores"], strict=True)) for row in rows]
        else:
            rows = answers((tmp_path / output).read_text())
            found = [[(label["label"], label["score"]) for label in row["labels"]] for row in rows]
        assert found == expected
        assert [(row["row"], row["text"]) for row in rows] == list(enumerate(TEXTS))


def test_the_job_on_standard_input_and_explained(trained: Path) -> None:
    done = job("predict.py", "--run", str(trained), "--input", "-", "--explain", lines="red round fruit\n\nsmall nut\n")
    assert done.returncode == 0, done.stderr
    rows = answers(done.stdout)
    assert [row["text"] for row in rows] == ["red round fruit", "", "small nut"]
    assert set(rows[0]["labels"][0]) == {"label", "score", "paths", "p", "q"}


def test_bad_input_is_told_with_its_place(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"title": "fine"}\n{"title": 3}\n')
    with pytest.raises(UserError, match=r"^texts.jsonl:2: text 3 is not a string$"):
        predict(trained, tmp_path / "texts.jsonl", tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]
    pq.write_table(pa.table({"other": TEXTS}), tmp_path / "texts.parquet")
    with pytest.raises(UserError, match=r"no column 'title', found other; .* --text-column"):
        predict(trained, tmp_path / "texts.parquet", tmp_path / "out.jsonl")
    with pytest.raises(UserError, match="top_k=0"):
        Question.of(str(trained), (), top_k=0, explain=False)
    with pytest.raises(UserError, match=r"none.txt: no such file$"):
        predict(trained, tmp_path / "none.txt", tmp_path / "out.jsonl")


def test_workers_that_share_one_model_predict_the_same(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elias_ray.predict_texts.ROWS_PER_CHUNK", 4)  # each of them has texts, one more than the other
    monkeypatch.chdir(trained.parent)
    (tmp_path / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
    overrides = ("inference.sharded=true", "resources.workers=2", "inference.edges_per_cluster=3")
    question = Question.of(trained.name, overrides, top_k=8, explain=False)
    config, before = open_run(trained, overrides)[0].config, sorted(trained.iterdir())
    predict_file(question, config, str(tmp_path / "texts.txt"), "", str(tmp_path / "out.jsonl"))
    assert sorted(trained.iterdir()) == before
    expected = predictor.load(trained, ["inference.edges_per_cluster=3"]).predict(TEXTS, top_k=8)
    rows = answers((tmp_path / "out.jsonl").read_text())
    assert [row["text"] for row in rows] == TEXTS
    for row, predictions in zip(rows, expected, strict=True):
        assert [label["label"] for label in row["labels"]] == [prediction.label for prediction in predictions]
        assert [label["score"] for label in row["labels"]] == pytest.approx([p.score for p in predictions], rel=1e-4)


def test_the_job_evaluate(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run/metrics.json").unlink()
    done = job("evaluate.py", "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "+ calibration" in done.stdout
    assert json.loads((tmp_path / "run/metrics.json").read_text()) == json.loads((trained / "metrics.json").read_text())
    by_decile = json.loads((tmp_path / "run/metrics_by_decile.json").read_text())
    assert list(by_decile) == ["stage1", "stage2", "ranker", "calibrated"]
