# ruff: noqa: E501 -- a table is read by its lines
"""Bad input: every case ends in one error that names file, place and value, and leaves no artifact behind."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from elias_ray.artifacts import Folder
from elias_ray.config import load_config
from elias_ray.errors import UserError
from elias_ray.prepare import prepare
from tests import examples

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.timeout(60)]

Spoil = Callable[[Path], None]


def replace_line(file: str, number: int, line: str | bytes) -> Spoil:
    """`number` is 1-based."""

    def spoil(folder: Path) -> None:
        path = folder / file
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = content.split(b"\n")
        lines[number - 1] = line if isinstance(line, bytes) else line.encode()
        spoiled = b"\n".join(lines)
        path.write_bytes(gzip.compress(spoiled) if path.suffix == ".gz" else spoiled)

    return spoil


def drop_last_line(file: str) -> Spoil:
    def spoil(folder: Path) -> None:
        lines = (folder / file).read_text().splitlines(keepends=True)
        (folder / file).write_text("".join(lines[:-1]))

    return spoil


def truncate(file: str, keep: float = 0.6) -> Spoil:
    def spoil(folder: Path) -> None:
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content[: int(len(content) * keep)])

    return spoil


def overwrite(file: str, content: bytes) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / file).write_bytes(content)

    return spoil


def empty(file: str) -> Spoil:
    return overwrite(file, b"")


def remove(file: str) -> Spoil:
    return lambda folder: (folder / file).unlink()


def npz(file: str, change: Callable[[sp.csr_matrix], sp.csr_matrix]) -> Spoil:
    return lambda folder: sp.save_npz(folder / file, change(sp.load_npz(folder / file)))


def with_value(value: float) -> Callable[[sp.csr_matrix], sp.csr_matrix]:
    def change(matrix: sp.csr_matrix) -> sp.csr_matrix:
        matrix.data[matrix.indptr[4]] = value  # first label of the fifth row
        return matrix

    return change


def with_column(column: int) -> Callable[[sp.csr_matrix], sp.csr_matrix]:
    def change(matrix: sp.csr_matrix) -> sp.csr_matrix:
        matrix.indices[matrix.indptr[4]] = column
        return matrix

    return change


def json_point(**changes: object) -> str:
    return json.dumps({"uid": "x", "title": "t", "content": "c", "target_ind": [1], "target_rel": [1.0], **changes})


def table(file: str, **columns: object) -> Spoil:
    return lambda folder: pq.write_table(pa.table(columns), folder / file)


def both(first: Spoil, second: Spoil) -> Spoil:
    def spoil(folder: Path) -> None:
        first(folder)
        second(folder)

    return spoil


def nothing(folder: Path) -> None:
    """The example itself is the case."""


def csc_with_row(row: int) -> Callable[[sp.csr_matrix], sp.csc_matrix]:
    def change(matrix: sp.csr_matrix) -> sp.csc_matrix:
        csc = matrix.tocsc()
        csc.indices[5] = row
        return csc

    return change


NPY = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }".ljust(127) + b"\n" + bytes(8)


class Case(NamedTuple):
    name: str
    example: Callable[[Path], None]
    spoil: Spoil
    said: list[str]  # all of these stand in the error
    overrides: tuple[str, ...] = ()


P, X, S, L, T, F, J, Q = examples.FORMATS.values()

CASES = [
    # rows that do not match
    Case("npz has fewer rows than texts", P, npz("Y.trn.npz", lambda y: y[:-1]), ["raw/trn_X.txt", "30", "Y.trn.npz", "29"]),
    Case("texts have fewer lines than npz", P, drop_last_line("raw/tst_X.txt"), ["raw/tst_X.txt has 9", "10", "line 10"]),
    Case("label lines missing", L, drop_last_line("train_labels.txt"), ["train_labels.txt has 29", "line 30"]),
    Case("texts missing beside sparse text", S, drop_last_line("raw/trn_X.txt"), ["raw/trn_X.txt has 29", "trn_X_Y.txt"]),
    Case("fewer label names than columns", P, drop_last_line("raw/Y.txt"), ["Y.trn.npz", "8 columns", "7"]),
    Case("test matrix has other columns", P, npz("Y.tst.npz", lambda y: y[:, :5]), ["Y.tst.npz", "5 columns", "8"]),
    Case("label names against the header", S, drop_last_line("Y.txt"), ["Y.txt", "7 label names", "8"]),
    # headers
    Case("header counts too many points", S, replace_line("trn_X_Y.txt", 1, "31 9 8"), ["trn_X_Y.txt", "31", "30"]),
    Case("header of two numbers", S, replace_line("trn_X_Y.txt", 1, "30 9"), ["trn_X_Y.txt:1", "'30 9'", "three numbers"]),
    Case("header missing", S, replace_line("tst_X_Y.txt", 1, "1,2 3:0.5"), ["tst_X_Y.txt:1", "1,2 3:0.5"]),
    Case("headers disagree on labels", S, replace_line("tst_X_Y.txt", 1, "10 9 7"), ["tst_X_Y.txt:1", "(9, 7)", "(9, 8)"]),
    # label ids
    Case("column out of range in npz", P, npz("Y.trn.npz", with_column(8)), ["Y.trn.npz: row 5", "column 8", "0 to 7"]),
    Case("negative column in npz", P, npz("Y.trn.npz", with_column(-1)), ["Y.trn.npz: row 5", "column -1"]),
    Case("label out of range in sparse text", S, replace_line("trn_X_Y.txt", 9, "8 1:1"), ["trn_X_Y.txt:9", "label 8", "0 to 7"]),
    Case("label out of range in JSON", X, replace_line("trn.json.gz", 12, json_point(target_ind=[99])), ["trn.json.gz:12", "99"]),
    Case("label is a name in JSON", X, replace_line("tst.json.gz", 3, json_point(target_ind=["a"])), ["tst.json.gz:3", '"a"']),
    Case("label out of range in text2text", T, replace_line("train.txt", 20, "1,8\ttext"), ["train.txt:20", "label 8", "0 to 7"]),
    Case("label is not a number in text2text", T, replace_line("test.txt", 2, "one\ttext"), ["test.txt:2", "'one'"]),
    Case("filter pair out of range", X, replace_line("filter_labels_test.txt", 2, "10 1"), ["filter_labels_test.txt:2", "row 10"]),
    Case("filter pair of three", X, replace_line("filter_labels_train.txt", 3, "1 2 3"), ["filter_labels_train.txt:3", "1 2 3"]),
    # relevance and feature values
    Case("NaN relevance in npz", P, npz("Y.trn.npz", with_value(np.nan)), ["Y.trn.npz: row 5", "nan"]),
    Case("negative relevance in npz", P, npz("Y.tst.npz", with_value(-1.0)), ["Y.tst.npz: row 5", "-1.0"]),
    Case("NaN relevance in JSON", X, replace_line("trn.json.gz", 8, json_point(target_rel=[float("nan")])), ["trn.json.gz:8", "nan"]),
    Case("relevances too few", X, replace_line("trn.json.gz", 8, json_point(target_rel=[])), ["trn.json.gz:8", "target_rel", "1"]),
    Case("negative weight in text2text", T, replace_line("train.txt", 7, "1::-0.5\ttext"), ["train.txt:7", "-0.5"]),
    Case("weight is not a number", T, replace_line("train.txt", 7, "1::big\ttext"), ["train.txt:7", "'big'"]),
    Case("feature value is not finite", S, replace_line("trn_X_Y.txt", 5, "1 2:inf"), ["trn_X_Y.txt:5", "'inf'"]),
    Case("feature out of range", S, replace_line("trn_X_Y.txt", 5, "1 9:1"), ["trn_X_Y.txt:5", "feature 9", "0 to 8"]),
    Case("feature without value", S, replace_line("trn_X_Y.txt", 5, "1 3"), ["trn_X_Y.txt:5", "'3'", "feature:value"]),
    # files that are empty, not text, or cut off
    Case("empty text file", P, empty("raw/trn_X.txt"), ["raw/trn_X.txt:1", "empty"]),
    Case("empty JSON lines", J, empty("test.jsonl"), ["test.jsonl:1", "empty"]),
    Case("nothing after the header", S, overwrite("trn_X_Y.txt", b"30 9 8\n"), ["trn_X_Y.txt:2", "ends after its header"]),
    Case("empty Parquet", Q, both(remove("test/part-1.parquet"), table("test/part-0.parquet", text=pa.array([], pa.string()), labels=pa.array([], pa.list_(pa.string())))), ["test/part-0.parquet", "empty"]),
    Case("bad UTF-8 in texts", P, replace_line("raw/trn_X.txt", 17, b"gr\xf6\xdfe"), ["raw/trn_X.txt:17", "0xf6", "column 3"]),
    Case("bad UTF-8 in label names", P, replace_line("raw/Y.txt", 2, b"\xff"), ["raw/Y.txt:2", "0xff"]),
    Case("bad UTF-8 in fastText", F, replace_line("fruit.test", 10, b"__label__fig \x80"), ["fruit.test:10", "0x80"]),
    Case("truncated gz", X, truncate("trn.json.gz"), ["trn.json.gz:", "gzip"]),
    Case("gz that is none", X, overwrite("tst.json.gz", b"plain text\n"), ["tst.json.gz:1", "gzip"]),
    Case("truncated npz", P, truncate("Y.trn.npz"), ["Y.trn.npz", "not a whole"]),
    Case("npz without a sparse matrix", P, lambda folder: np.savez(folder / "Y.trn.npz", a=np.zeros(3)), ["Y.trn.npz", "not a whole"]),
    Case("truncated Parquet", Q, truncate("train/part-1.parquet"), ["train/part-1.parquet", "not a whole Parquet"]),
    # lines that cannot be read
    Case("malformed JSON line", J, replace_line("train.jsonl", 13, '{"text": "a", '), ["train.jsonl:13", "not a JSON object"]),
    Case("JSON line is a list", J, replace_line("train.jsonl", 13, "[1, 2]"), ["train.jsonl:13", "[1, 2]"]),
    Case("malformed XC JSON line", X, replace_line("tst.json.gz", 4, "{"), ["tst.json.gz:4", "not a JSON object"]),
    Case("JSON line without the text", J, replace_line("train.jsonl", 2, '{"labels": []}'), ["train.jsonl:2", "'text'", "text_column"]),
    Case("labels are no list", J, replace_line("train.jsonl", 2, '{"text": "a", "labels": "b"}'), ["train.jsonl:2", "'b'", "list"]),
    Case("label is a float", J, replace_line("train.jsonl", 2, '{"text": "a", "labels": [0.5]}'), ["train.jsonl:2", "0.5"]),
    Case("text is a number", J, replace_line("test.jsonl", 2, '{"text": 5, "labels": []}'), ["test.jsonl:2", "5"]),
    Case("label is null in Parquet", Q, table("test/part-1.parquet", text=["a", "b"], labels=[["x"], [None]]), ["test/part-1.parquet: row 2", "None"]),
    Case("Parquet without the column", J, both(remove("train.jsonl"), table("train.parquet", body=["a"], labels=[["b"]])), ["train.parquet", "'text'", "body, labels"]),
    Case("text2text without a tab", T, replace_line("train.txt", 5, "1,2 text"), ["train.txt:5", "a tab"]),
    Case("fastText label without a name", F, replace_line("fruit.train", 6, "__label__ text"), ["fruit.train:6", "without a name"]),
    # labels
    Case("duplicate label names", P, replace_line("raw/Y.txt", 5, "banana"), ["raw/Y.txt:5", "'banana'", "line 2"]),
    Case("duplicate items", T, replace_line("output-labels.txt", 8, "apple"), ["output-labels.txt:8", "'apple'", "line 1"]),
    Case("duplicate label uid", X, replace_line("lbl.json.gz", 8, '{"uid": "L0", "title": "t"}'), ["lbl.json.gz:8", "'L0'", "line 1"]),
    Case("label without a name", P, replace_line("raw/Y.txt", 3, "  "), ["raw/Y.txt:3", "without a name"]),
    Case("no labels at all in npz", P, npz("Y.trn.npz", lambda y: sp.csr_matrix(y.shape, dtype=np.float32)), ["no training point has a label"]),
    Case("no labels at all in lines", L, overwrite("train_labels.txt", b"\n" * 30), ["no training point has a label"]),
    # the first line is no special one
    Case("negative weight on line 1", T, replace_line("train.txt", 1, "0::-0.5\ttext"), ["train.txt:1", "-0.5"]),
    Case("label is a name on line 1", T, replace_line("train.txt", 1, "a,b\ttext"), ["train.txt:1", "'a'"]),
    # what libraries stumble over
    Case("half a surrogate pair in a text", J, replace_line("train.jsonl", 9, '{"text": "\\ud83d", "labels": []}'), ["train.jsonl:9", "'\\ud83d' is half of a surrogate pair"]),
    Case("half a surrogate pair in a label", J, replace_line("train.jsonl", 9, '{"text": "a", "labels": ["\\uD83D"]}'), ["train.jsonl:9", "'\\ud83d' is half of a surrogate pair"]),
    Case("JSON nested too deeply", J, replace_line("train.jsonl", 9, "[" * 100_000), ["train.jsonl:9", "[[["]),
    Case("label number of 5,000 digits", T, replace_line("train.txt", 3, "9" * 5000 + "\ttext"), ["train.txt:3", "out of range"]),
    Case("relevance of 400 digits", X, replace_line("trn.json.gz", 3, json_point(target_rel=[10**400])), ["trn.json.gz:3", "relevance 1000"]),
    Case("no text in XC JSON", X, replace_line("trn.json.gz", 3, '{"uid": "x", "target_ind": [1]}'), ["trn.json.gz:3", "neither title nor content"]),
    Case("npz of texts", P, lambda folder: np.savez(folder / "Y.trn.npz", data=np.array(["a"]), indices=[0], indptr=[0, 1], format=b"csr", shape=(1, 8)), ["Y.trn.npz", "not a whole"]),
    Case("npy under the name of an npz", P, overwrite("Y.trn.npz", NPY), ["Y.trn.npz", "not a whole"]),
    Case("csc with a row out of range", P, npz("Y.trn.npz", csc_with_row(1000)), ["Y.trn.npz", "not a whole"]),
    Case("bad UTF-8 in Parquet", Q, table("test/part-1.parquet", text=pa.array([b"\xff"]).view(pa.utf8()), labels=[["x"]]), ["test/part-1.parquet: row 1", "utf-8"]),
    Case("no word in any training text", J, overwrite("train.jsonl", b'{"text": "a", "labels": ["b"]}\n' * 9), ["no word of two letters"]),
    Case("terms too rare", F, nothing, ["no word", "99 training texts"], ("features.min_document_frequency=99",)),
    Case("more clusters than labels", F, nothing, ["clusters.count=32", "8"], ("clusters.count=32",)),
    # files that are missing or too many
    Case("labels missing", P, remove("Y.tst.npz"), ["no Y.tst.npz"]),
    Case("texts missing", P, remove("raw/trn_X.txt"), ["no raw/trn_X.txt"]),
    Case("items file missing", T, remove("output-labels.txt"), ["no output-labels.txt"]),
    Case("raw texts missing", S, remove("raw/tst_X.txt"), ["no raw/tst_X.txt", "encoder reads text"]),
    Case("two kinds of training table", J, table("train.parquet", text=["a"], labels=[["b"]]), ["train.parquet", "train.jsonl", "keep one"]),
    Case("features asked for and absent", P, nothing, ["no X.trn.npz", "features.given=true"], ("features.given=true",)),
    Case("features from a format without", F, nothing, ["fastText brings no features"], ("features.given=true",)),
    Case("unknown format", lambda folder: examples.write_text(folder / "notes.md", ["hello"]), nothing, ["no known format", "notes.md", *(name.split(" (Parquet)")[0] for name in examples.FORMATS), "trn.json.gz", "__label__a"]),
    Case("empty folder", lambda folder: folder.mkdir(), nothing, ["no known format", "found nothing"]),
    Case("no such folder", nothing, nothing, ["no such file or folder"]),
    Case("one point", lambda folder: examples.write_text(folder / "train.jsonl", ['{"text": "a", "labels": ["b"]}']), nothing, ["1 training points are too few"]),
    Case("encoder that is not there", F, nothing, ["encoder.name=package:no_such/model", "not installed"], ("encoder.name=package:no_such/model",)),
]  # fmt: skip


def test_there_are_enough_cases() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input(case: Case, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    case.example(data)
    case.spoil(data)
    config = load_config(overrides=[f"data.path={data}", "data.rows_per_shard=7", *case.overrides])
    with pytest.raises(UserError) as caught:
        prepare(Folder.at(run), config)
    for words in case.said:
        assert words in str(caught.value)
    assert not (run / "prepare").exists()
