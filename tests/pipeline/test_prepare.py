"""prepare on every format: the same points come out, whatever form they came in."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import TfidfVectorizer
from transformers import AutoTokenizer

from elias_ray.artifacts import Folder
from elias_ray.config import Config, load_config
from elias_ray.data import SPLITS, Prepared
from elias_ray.errors import UserError
from elias_ray.formats.source import SplitName
from elias_ray.prepare import prepare
from elias_ray.tokenizer import encoder_location
from tests import examples

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(120)]


def config_for(path: Path, *overrides: str) -> Config:
    return load_config(overrides=[f"data.path={path}", "data.rows_per_shard=7", *overrides])


def prepared(data: Path, run: Path, *overrides: str) -> Prepared:
    return prepare(Folder.at(run), config_for(data, *overrides))


def rows(result: Prepared, split: SplitName, column: str) -> list[Any]:
    return [v for shard in result.shards(split) for v in result.folder.read_table(shard)[column].to_pylist()]


@pytest.mark.parametrize("name", examples.FORMATS)
def test_every_format_gives_the_same_points(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples.FORMATS[name](tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run")

    assert result.facts["format"] == name.split(" (Parquet)")[0]
    assert result.facts["format"] in capsys.readouterr().out
    assert result.label_names == examples.LABELS
    assert [result.num_rows(split) for split in SPLITS] == [27, 3, 10]
    held_out = rows(result, "validation", "row")
    assert sorted([*rows(result, "train", "row"), *held_out]) == list(range(30))
    for split, source in zip(SPLITS, (examples.TRAIN, examples.TRAIN, examples.TEST), strict=True):
        numbers = rows(result, split, "row")
        assert numbers == sorted(numbers)
        assert rows(result, split, "text") == [source[n].text for n in numbers]
        assert rows(result, split, "labels") == [list(source[n].labels) for n in numbers]
    frequency = examples.label_matrix([p for n, p in enumerate(examples.TRAIN) if n not in held_out]).sum(axis=0)
    assert result.label_frequency_L.tolist() == np.asarray(frequency).ravel().tolist()


@pytest.mark.parametrize("max_length", [6, 64])
def test_tokens_equal_the_librarys(max_length: int, tmp_path: Path) -> None:
    examples.json_lines(tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run", f"encoder.max_length={max_length}")
    tokenizer = AutoTokenizer.from_pretrained(encoder_location(config_for(tmp_path).encoder.name))
    texts = [point.text for point in examples.TEST]
    whole = tokenizer(texts)["input_ids"]
    assert rows(result, "test", "input_ids") == tokenizer(texts, truncation=True, max_length=max_length)["input_ids"]
    assert result.facts["splits"]["test"]["truncated"] == sum(len(ids) > max_length for ids in whole)
    assert result.facts["splits"]["test"]["tokens"] == sum(min(len(ids), max_length) for ids in whole)


def test_seven_formats_are_covered() -> None:
    assert len({name.split(" (Parquet)")[0] for name in examples.FORMATS}) == 7


def test_tfidf_equals_the_library_fitted_on_training_texts_alone(tmp_path: Path) -> None:
    examples.lightxml(tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run", "features.min_document_frequency=2")
    vectoriser = TfidfVectorizer(min_df=2, dtype=np.float32).fit(rows(result, "train", "text"))

    terms = result.folder.read_table("terms.parquet")
    assert terms["term"].to_pylist() == vectoriser.get_feature_names_out().tolist()
    np.testing.assert_allclose(terms["idf"].to_numpy(), vectoriser.idf_, rtol=1e-6)
    for split in SPLITS:
        expected = vectoriser.transform(rows(result, split, "text"))
        assert abs(result.tfidf(split) - expected).max() < 1e-6


def test_most_frequent_terms_are_kept(tmp_path: Path) -> None:
    examples.json_lines(tmp_path / "data")
    every = prepared(tmp_path / "data", tmp_path / "all").folder.read_table("terms.parquet").to_pylist()
    some = prepared(tmp_path / "data", tmp_path / "five", "features.max_terms=5").folder.read_table("terms.parquet")
    most = sorted(every, key=lambda term: (-term["document_frequency"], term["term"]))[:5]
    assert some["term"].to_pylist() == sorted(term["term"] for term in most)


def test_features_that_come_with_the_data(tmp_path: Path) -> None:
    examples.pecos_npz(tmp_path / "data")
    rng = np.random.default_rng(0)
    given = {word: sp.random(n, 13, 0.3, format="csr", random_state=rng) for word, n in (("trn", 30), ("tst", 10))}
    for word, matrix in given.items():
        sp.save_npz(tmp_path / f"data/X.{word}.npz", matrix)
    result = prepared(tmp_path / "data", tmp_path / "run", "features.given=true")
    norms = np.linalg.norm(given["tst"].toarray(), axis=1, keepdims=True)
    expected = np.divide(given["tst"].toarray(), norms, out=np.zeros((10, 13)), where=norms > 0)
    np.testing.assert_allclose(result.tfidf("test").toarray(), expected, atol=1e-6)
    assert result.num_terms == 13


def test_sparse_text_features_can_be_taken(tmp_path: Path) -> None:
    examples.xc_sparse(tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run", "features.given=true")
    first = np.zeros(9)
    first[[0, 7]] = (0.5, 1.25)
    np.testing.assert_allclose(result.tfidf("test").toarray()[0], first / np.linalg.norm(first), atol=1e-6)


def test_filtered_pairs_stay_with_their_rows(tmp_path: Path) -> None:
    examples.xc_json(tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run")
    expected: list[list[int]] = [[] for _ in range(10)]
    expected[0], expected[3] = [1], [2, 7]
    assert rows(result, "test", "filtered") == expected


def test_points_without_labels_and_empty_texts_are_kept_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    train = [{"text": f"some text {n}", "labels": ["a", "b"]} for n in range(20)]
    train[3]["labels"], train[4]["text"], train[5]["text"] = [], "", " \t"
    for word, points in (("train", train), ("test", [*train[:2], {"text": None, "labels": None}])):
        examples.write_text(tmp_path / f"data/{word}.jsonl", [json.dumps(point) for point in points])
    result = prepared(tmp_path / "data", tmp_path / "run", "seed=1")
    splits = result.facts["splits"]
    assert splits["train"]["points"] + splits["validation"]["points"] == 20
    assert splits["train"]["empty_texts"] + splits["validation"]["empty_texts"] == 2
    assert splits["train"]["without_labels"] + splits["validation"]["without_labels"] == 1
    assert (splits["test"]["empty_texts"], splits["test"]["without_labels"]) == (1, 1)
    assert result.facts["test_texts_in_training"] == 2
    table = capsys.readouterr().out
    for line in ("points without labels", "empty texts", "labels never trained", "test texts seen in training"):
        assert line in table


def test_own_validation_points_are_used(tmp_path: Path) -> None:
    examples.pecos_npz(tmp_path / "data")
    examples.write_text(tmp_path / "data/raw/dev_X.txt", ["held out one", "held out two"])
    sp.save_npz(tmp_path / "data/Y.dev.npz", examples.label_matrix(examples.TRAIN[:2]))
    result = prepared(tmp_path / "data", tmp_path / "run")
    assert result.num_rows("train") == 30
    assert rows(result, "validation", "text") == ["held out one", "held out two"]


def test_one_file_is_split_in_three(tmp_path: Path) -> None:
    examples.json_lines(tmp_path / "data")
    result = prepared(tmp_path / "data/train.jsonl", tmp_path / "run")
    assert [result.num_rows(split) for split in SPLITS] == [24, 3, 3]
    found = [n for split in SPLITS for n in rows(result, split, "row")]
    assert sorted(found) == list(range(30))


def test_validation_points_depend_on_the_seed_alone(tmp_path: Path) -> None:
    examples.lightxml(tmp_path / "data")
    drawn = {}
    for name, overrides in {
        "a": ["seed=3"],
        "b": ["seed=3", "data.rows_per_shard=30"],
        "c": ["seed=4"],
    }.items():
        drawn[name] = rows(prepared(tmp_path / "data", tmp_path / name, *overrides), "validation", "row")
    assert drawn["a"] == drawn["b"] != drawn["c"]


def test_homonyms_can_be_numbered(tmp_path: Path) -> None:
    examples.pecos_npz(tmp_path / "data")
    examples.write_text(tmp_path / "data/raw/Y.txt", [*examples.LABELS[:-1], "apple"])
    result = prepared(tmp_path / "data", tmp_path / "run", "data.homonyms=number")
    assert result.label_names == [*examples.LABELS[:-1], "apple [7]"]


def test_a_second_run_does_nothing_and_changed_data_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples.fasttext(tmp_path / "data")
    first = prepared(tmp_path / "data", tmp_path / "run")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.parquet")}
    assert len(stamps) > 10
    second = prepared(tmp_path / "data", tmp_path / "run")
    assert "done before" in capsys.readouterr().out
    assert first.facts == second.facts
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*.parquet")}

    train = tmp_path / "data/fruit.train"
    same = train.read_text()
    train.write_text(same)  # touched, not changed
    prepared(tmp_path / "data", tmp_path / "run")
    train.write_text(same.replace("red", "tan"))
    with pytest.raises(UserError, match=r"fruit\.train has changed"):
        prepared(tmp_path / "data", tmp_path / "run")


def test_a_damaged_shard_is_told(tmp_path: Path) -> None:
    examples.fasttext(tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run")
    shard = Path(result.folder.path) / next(iter(result.shards("train")))
    content = bytearray(shard.read_bytes())
    content[40] ^= 0xFF
    shard.write_bytes(content)
    with pytest.raises(UserError, match="missing or damaged"):
        result.folder.read_table(next(iter(result.shards("train"))))
    shard.write_bytes(content[:-10])
    with pytest.raises(UserError, match=r"found \d+ bytes, the manifest says"):
        prepared(tmp_path / "data", tmp_path / "run")


def test_leftovers_of_a_killed_run_do_not_count(tmp_path: Path) -> None:
    examples.fasttext(tmp_path / "data")
    stray = tmp_path / "run/prepare/train/train-000099.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"half")
    result = prepared(tmp_path / "data", tmp_path / "run")
    assert not stray.exists()
    assert result.num_rows("train") == 27
    assert not (tmp_path / "run/prepare/scratch").exists()
