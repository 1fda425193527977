"""The ELIAS/PECOS way: a text per line, and the labels of the same rows in a scipy matrix."""

import hashlib
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.label_files import read_label_names
from elias_ray.formats.source import Row, Source, Split, SplitName, chunk_up, require_same_rows

NAME = "raw text + npz (ELIAS/PECOS)"
LOOKED_FOR = "raw/trn_X.txt, Y.trn.npz; optional raw/tst_X.txt, Y.tst.npz, raw/dev_X.txt, Y.dev.npz, raw/Y.txt, X.*.npz"

SPLITS: dict[SplitName, str] = {"train": "trn", "validation": "dev", "test": "tst"}


def matches(data: DataFolder) -> bool:
    return data.only is None and data.find("Y.trn.npz", *_texts("trn")) is not None


def read(data: DataFolder, config: Config) -> Source:
    names_file = data.find("raw/Y.txt", "Y.txt", "output-items.txt")
    label_names = read_label_names(data, names_file) if names_file else None
    num_labels = len(label_names) if label_names else None
    num_features: int | None = None
    splits: dict[SplitName, Split] = {}
    for split, word in SPLITS.items():
        if split != "train" and data.find(f"Y.{word}.npz", *_texts(word)) is None:
            continue
        because = f"{split} points have a text and labels each"
        texts = data.index_lines(data.require(*_texts(word), because=because))
        matrix_name = data.require(f"Y.{word}.npz", because=because)
        labels = load_matrix(data, matrix_name, num_labels)
        num_labels = labels.shape[1]
        require_same_rows(texts.name, texts.num_rows, matrix_name, labels.shape[0])
        features = None
        if config.features.given:
            features_name = data.require(f"X.{word}.npz", because="features.given=true")
            features = load_matrix(data, features_name, num_features, signed=True)
            num_features = features.shape[1]
            require_same_rows(texts.name, texts.num_rows, features_name, features.shape[0])
        parts = []
        for lines in texts.ranges:
            rows = slice(lines.first_line - 1, lines.first_line - 1 + lines.num_lines)
            x = features[rows] if features is not None else None
            parts.append((lines.num_lines, partial(read_rows, lines, labels[rows], x)))
        splits[split] = Split(chunk_up(parts))
    assert num_labels is not None
    return Source(NAME, splits, label_names or [str(label) for label in range(num_labels)], num_features)


def read_rows(texts: LineRange, labels: sp.csr_matrix, features: sp.csr_matrix | None) -> Iterator[Row]:
    for row, (_, text) in enumerate(texts.lines()):
        ids = labels.indices[labels.indptr[row] : labels.indptr[row + 1]].tolist()
        if features is None:
            yield Row(text, ids)
        else:
            entries = slice(features.indptr[row], features.indptr[row + 1])
            yield Row(text, ids, (features.indices[entries].astype(np.int32), features.data[entries]))


def load_matrix(data: DataFolder, name: str, num_columns: int | None, signed: bool = False) -> sp.csr_matrix:
    """A scipy npz: finite (and unless `signed`, non-negative) values, every column in range; zeros are dropped."""
    content = data.folder.read(name)
    data.note_use(name, hashlib.sha256(content).hexdigest())
    try:
        matrix = sp.load_npz(pa.BufferReader(content))
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"values of type {matrix.dtype}")
        if matrix.format == "csr":
            _require_columns(matrix, name)
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)  # before anything in C trusts its indices
        matrix = sp.csr_matrix(matrix.astype(np.float32))
    except UserError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(
            f"{name}: not a whole scipy sparse matrix of numbers ({error or type(error).__name__}); write it again"
        ) from None
    if num_columns is not None and matrix.shape[1] != num_columns:
        raise UserError(f"{name}: {matrix.shape[1]} columns, expected {num_columns} as in the other files")
    bad = ~np.isfinite(matrix.data) | ((matrix.data < 0) & (not signed))
    if bad.any():
        row, value = _first(matrix, bad, matrix.data)
        allowed = "a finite number" if signed else "a finite, non-negative number"
        raise UserError(f"{name}: row {row}: value {value}, expected {allowed}")
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _require_columns(matrix: sp.csr_matrix, name: str) -> None:
    bad = (matrix.indices < 0) | (matrix.indices >= matrix.shape[1])
    if bad.any():
        row, value = _first(matrix, bad, matrix.indices)
        raise UserError(f"{name}: row {row}: column {value} is out of range, allowed 0 to {matrix.shape[1] - 1}")


def _first(
    matrix: sp.csr_matrix, bad: npt.NDArray[np.bool_], values: npt.NDArray[np.generic]
) -> tuple[int, np.generic]:
    """The 1-based row and the value of the first bad entry."""
    entry = int(np.flatnonzero(bad)[0])
    return int(np.searchsorted(matrix.indptr, entry, side="right")), values[entry]


def _texts(word: str) -> tuple[str, str, str]:
    return f"raw/{word}_X.txt", f"{word}_X.txt", f"X.{word}.txt"
