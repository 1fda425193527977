"""Odd but good input: files as editors, tools and other libraries really write them."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from elias_ray import prepare as prepare_module
from elias_ray.artifacts import Folder
from elias_ray.clusters import make_clusters
from elias_ray.config import load_config
from elias_ray.data import SPLITS, Prepared
from elias_ray.prepare import prepare
from elias_ray.streaming import stream
from tests import examples

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(60)]

Change = Callable[[Path], object]


def prepared(data: Path, run: Path, *overrides: str) -> Prepared:
    return prepare(Folder.at(run), load_config(overrides=[f"data.path={data}", "data.rows_per_shard=7", *overrides]))


def points(result: Prepared) -> dict[str, list[tuple[int, str, list[int]]]]:
    """Row, text and labels of every point of every split."""
    found: dict[str, list[Any]] = {}
    for split in SPLITS:
        tables = [result.folder.read_table(shard) for shard in result.shards(split)]
        columns = ("row", "text", "labels")
        found[split] = [row for t in tables for row in zip(*(t[c].to_pylist() for c in columns), strict=True)]
    return found


def rewrite(file: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / file).write_bytes(change((folder / file).read_bytes()))


def npz(file: str, change: Callable[[sp.csr_matrix], Any]) -> Change:
    return lambda folder: sp.save_npz(folder / file, change(sp.load_npz(folder / file)))


def with_zeros(matrix: sp.csr_matrix) -> sp.csr_matrix:
    """Explicit zeros in every place that is not a label."""
    dense = matrix.toarray()
    rows, columns = np.indices(dense.shape)
    return sp.csr_matrix((dense.ravel(), (rows.ravel(), columns.ravel())), shape=dense.shape)


def split_in_two(folder: Path) -> None:
    """As data hubs name them."""
    (folder / "data").mkdir()
    for word in ("train", "test"):
        table = pa.concat_tables(pq.read_table(path) for path in sorted((folder / word).glob("*.parquet")))
        table = table.set_column(0, "text", table["text"].cast(pa.large_string()))
        for part in range(2):
            half = table.slice(part * 9, 9 if part == 0 else None)
            pq.write_table(half, folder / f"data/{word}-0000{part}-of-00002.parquet", row_group_size=1000)
        for path in (folder / word).glob("*.parquet"):
            path.unlink()
        (folder / word).rmdir()


def neighbours(folder: Path) -> None:
    """Files that are none of ours."""
    examples.write_text(folder / "train_args.json", ["{}"])
    examples.write_text(folder / "train_labels.txt", ["x"])
    examples.write_text(folder / ".cache/train.jsonl", ["{}"])
    examples.write_text(folder / "old/train.jsonl", ["{}"])
    examples.write_text(folder / "train/_metadata.json", ["{}"])
    examples.write_text(folder / "README.md", ["# data"])


P, X, S, L, T, F, J, Q = examples.FORMATS.values()
SAME: dict[str, tuple[Callable[[Path], None], Change]] = {
    "windows line ends": (T, rewrite("train.txt", lambda content: content.replace(b"\n", b"\r\n"))),
    "byte-order mark": (T, rewrite("train.txt", lambda content: b"\xef\xbb\xbf" + content)),
    "byte-order mark in fastText": (F, rewrite("fruit.train", lambda content: b"\xef\xbb\xbf" + content)),
    "no newline at the end": (P, rewrite("raw/trn_X.txt", lambda content: content.removesuffix(b"\n"))),
    "blank lines at the end of JSON lines": (J, rewrite("train.jsonl", lambda content: content + b"\n \n\n")),
    "blank lines at the end of text2text": (T, rewrite("test.txt", lambda content: content + b"\n\n")),
    "blank lines at the end of label names": (T, rewrite("output-labels.txt", lambda content: content + b"\n\n")),
    "weights of zero do not count": (T, rewrite("train.txt", lambda c: c.replace(b"0::0.5\t", b"0::0.5,0::0\t"))),
    "weights left out": (T, rewrite("train.txt", lambda content: content.replace(b"::0.5", b""))),
    "blanks between labels": (T, rewrite("train.txt", lambda content: content.replace(b"::0.5,", b"::5e-1, "))),
    "label twice": (F, rewrite("fruit.train", lambda c: c.replace(b"__label__fig ", b"__label__fig __label__fig "))),
    "gz of several members": (
        X,
        rewrite("trn.json.gz", lambda c: b"".join(map(gzip.compress, gzip.decompress(c).splitlines(keepends=True)))),
    ),
    "gz beside the file it was made from": (
        J,
        lambda folder: (folder / "train.jsonl.gz").write_bytes(gzip.compress((folder / "train.jsonl").read_bytes())),
    ),
    "plain instead of gz": (
        X,
        lambda f: (f / "trn.json").write_bytes(gzip.decompress((f / "trn.json.gz").read_bytes())),
    ),
    "empty filter file": (X, rewrite("filter_labels_test.txt", lambda content: b"")),
    "npz of another layout": (P, npz("Y.trn.npz", sp.csc_matrix)),
    "npz of coordinates": (P, npz("Y.trn.npz", sp.coo_matrix)),
    "npz of booleans": (P, npz("Y.trn.npz", lambda y: y.astype(bool))),
    "npz of integers": (P, npz("Y.trn.npz", lambda y: y.astype(np.int64) * 3)),
    "npz of half precision": (P, lambda f: _save_half(f / "Y.trn.npz")),
    "npz with explicit zeros": (P, npz("Y.trn.npz", with_zeros)),
    "Parquet as hubs name it": (Q, split_in_two),
    "neighbours of fastText": (F, neighbours),
    "neighbours of JSON lines": (J, neighbours),
}


def _save_half(path: Path) -> None:
    matrix = sp.load_npz(path)
    arrays = {"indices": matrix.indices, "indptr": matrix.indptr, "format": b"csr", "shape": matrix.shape}
    np.savez(path, data=matrix.data.astype(np.float16), **arrays)


@pytest.mark.parametrize("name", SAME)
def test_same_points_as_the_plain_example(name: str, tmp_path: Path) -> None:
    example, change = SAME[name]
    example(tmp_path / "plain")
    example(tmp_path / "odd")
    change(tmp_path / "odd")
    plain, odd = prepared(tmp_path / "plain", tmp_path / "a"), prepared(tmp_path / "odd", tmp_path / "b")
    assert odd.label_names == plain.label_names
    assert points(odd) == points(plain)


@pytest.mark.parametrize("rows_per_shard", [1, 5, 6, 29, 30, 31])
def test_any_size_of_shard_gives_the_same_points(rows_per_shard: int, tmp_path: Path) -> None:
    examples.xc_sparse(tmp_path / "data")
    result = prepared(tmp_path / "data", tmp_path / "run", f"data.rows_per_shard={rows_per_shard}")
    assert [len(v) for v in points(result).values()] == [27, 3, 10]
    found = {row: (text, labels) for row, text, labels in points(result)["train"] + points(result)["validation"]}
    assert found == {row: (p.text, list(p.labels)) for row, p in enumerate(examples.TRAIN)}


def test_the_order_in_which_tasks_end_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples.lightxml(tmp_path / "data")
    one = prepared(tmp_path / "data", tmp_path / "one")

    monkeypatch.setattr(prepare_module, "stream", lambda items, work: (r for r in [*stream(items, work)][::-1]))
    other = prepared(tmp_path / "data", tmp_path / "other")
    assert one.folder.files() == other.folder.files()
    assert one.facts == other.facts
    for name in one.folder.files():
        assert one.folder.read(name) == other.folder.read(name)


def test_line_separators_of_unicode_end_no_line(tmp_path: Path) -> None:
    examples.pecos_npz(tmp_path / "data")
    texts = [f"one\u2028two\x0bthree\x85four\x1cfive\t{row}" for row in range(30)]
    examples.write_text(tmp_path / "data/raw/trn_X.txt", texts)
    result = points(prepared(tmp_path / "data", tmp_path / "run"))
    assert sorted(text for _, text, _ in result["train"] + result["validation"]) == sorted(texts)


def test_labels_without_names_are_numbered(tmp_path: Path) -> None:
    examples.pecos_npz(tmp_path / "data")
    (tmp_path / "data/raw/Y.txt").unlink()
    assert prepared(tmp_path / "data", tmp_path / "run").label_names == [str(n) for n in range(8)]


def test_labels_that_are_numbers_are_in_their_order(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "labels": [n % 12, n % 5]} for n in range(30)]
    examples.write_text(tmp_path / "data/train.jsonl", [json.dumps(row) for row in rows])
    assert prepared(tmp_path / "data", tmp_path / "run").label_names == [str(n) for n in range(12)]


def test_titles_that_products_share_get_their_uid(tmp_path: Path) -> None:
    examples.xc_json(tmp_path / "data")
    titles = ["A", "A", "", "A [L0]", "B", "C", "D", "E"]
    lines = [json.dumps({"uid": f"L{n}", "title": title}) for n, title in enumerate(titles)]
    examples.write_text(tmp_path / "data/lbl.json.gz", lines)
    expected = ["A [L0] [0]", "A [L1]", "[L2]", "A [L0]", "B", "C", "D", "E"]
    assert prepared(tmp_path / "data", tmp_path / "run").label_names == expected


def test_a_first_line_without_labels_is_a_point(tmp_path: Path) -> None:
    examples.fasttext(tmp_path / "data")
    train = tmp_path / "data/fruit.train"
    train.write_text("no label here\n" + train.read_text())
    result = prepared(tmp_path / "data", tmp_path / "run")
    assert result.facts["format"] == "fastText"
    assert sum(result.facts["splits"][s]["without_labels"] for s in SPLITS) == 1


def test_the_name_of_a_file_decides_before_its_folder(tmp_path: Path) -> None:
    for name, count in (("train/train-0.jsonl", 20), ("train/test-0.jsonl", 3)):
        lines = [json.dumps({"text": f"{name} {n}", "labels": ["a"]}) for n in range(count)]
        examples.write_text(tmp_path / "data" / name, lines)
    assert [len(v) for v in points(prepared(tmp_path / "data", tmp_path / "run")).values()] == [18, 2, 3]


def test_two_packed_files_of_like_names(tmp_path: Path) -> None:
    for name, count in (("train/x.jsonl.gz", 5), ("train_1.jsonl.gz", 15)):
        lines = [json.dumps({"text": f"{name} {n}", "labels": ["a"]}) for n in range(count)]
        examples.write_text(tmp_path / "data" / name, lines)
    result = points(prepared(tmp_path / "data", tmp_path / "run"))
    assert len({text for split in result.values() for _, text, _ in split}) == 20


def test_a_run_inside_the_data_is_not_data(tmp_path: Path) -> None:
    examples.fasttext(tmp_path / "data")
    first = prepared(tmp_path / "data", tmp_path / "data/run1")
    second = prepared(tmp_path / "data", tmp_path / "data/run2")
    assert second.facts["format"] == "fastText"
    assert points(first) == points(second)


@pytest.mark.parametrize("example", [P, X, S, L, T, F, J], ids=lambda example: example.__name__)
def test_data_without_test_points_gives_a_tenth(example: Callable[[Path], None], tmp_path: Path) -> None:
    example(tmp_path / "data")
    for path in [*tmp_path.rglob("*tst*"), *tmp_path.rglob("*test*")]:
        if path.is_file() and "filter" not in path.name:
            path.unlink()
    assert [len(v) for v in points(prepared(tmp_path / "data", tmp_path / "run")).values()] == [24, 3, 3]


def test_features_in_any_order_are_summed(tmp_path: Path) -> None:
    examples.xc_sparse(tmp_path / "data")
    rows = ["1,2 7:0.5 3:0.5 3:0.5 1:0"] * 10
    examples.write_text(tmp_path / "data/tst_X_Y.txt", ["10 9 8", *rows])
    matrix = prepared(tmp_path / "data", tmp_path / "run", "features.given=true").tfidf("test")
    expected = np.zeros(9)
    expected[[3, 7]] = np.array([1.0, 0.5]) / np.hypot(1.0, 0.5)
    np.testing.assert_allclose(matrix.toarray(), np.tile(expected, (10, 1)), atol=1e-6)
    assert matrix.nnz == 20


def test_clusters_are_made_anew_for_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples.fasttext(tmp_path / "data")
    config = load_config(overrides=[f"data.path={tmp_path / 'data'}"])
    run = Folder.at(tmp_path / "run")
    make_clusters(run / "clusters", prepare(run, config), config, seed=0)
    (run / "prepare").delete()
    train = tmp_path / "data/fruit.train"
    train.write_text(train.read_text() + "__label__new text\n")
    make_clusters(run / "clusters", prepare(run, config), config, seed=0)
    assert "clusters: done before" not in capsys.readouterr().out
    assert (run / "clusters").read_table("clusters.parquet").num_rows == 9
