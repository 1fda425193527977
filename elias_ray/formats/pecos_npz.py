"""The ELIAS/PECOS way: a text per line, and the labels of the same rows in a scipy matrix."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import scipy.sparse as sp

from elias_ray.config import Config
from elias_ray.formats.source import DataFolder, LineRange, Row, Source, Split, SplitName, chunk_up, require_same_rows

NAME = "raw text + npz (ELIAS/PECOS)"
LOOKED_FOR = "raw/trn_X.txt, raw/tst_X.txt, Y.trn.npz, Y.tst.npz; optional raw/Y.txt, raw/dev_X.txt, Y.dev.npz, X.*.npz"

SPLITS: dict[SplitName, str] = {"train": "trn", "validation": "dev", "test": "tst"}


def matches(data: DataFolder) -> bool:
    return data.only is None and data.find("Y.trn.npz", *_texts("trn")) is not None


def read(data: DataFolder, config: Config) -> Source:
    labels_name = data.find("raw/Y.txt", "Y.txt", "output-items.txt")
    label_names = data.label_names(labels_name) if labels_name else None
    num_labels = len(label_names) if label_names else None
    num_features: int | None = None
    splits: dict[SplitName, Split] = {}
    for split, word in SPLITS.items():
        if split == "validation" and data.find(*_texts(word)) is None and data.find(f"Y.{word}.npz") is None:
            continue
        because = f"{split} points have a text and labels each"
        texts = data.index_lines(data.require(*_texts(word), because=because))
        matrix_name = data.require(f"Y.{word}.npz", because=because)
        labels = data.load_matrix(matrix_name, num_labels)
        num_labels = labels.shape[1]
        require_same_rows(texts.name, texts.num_rows, matrix_name, labels.shape[0])
        features = None
        if config.features.given:
            features_name = data.require(f"X.{word}.npz", because="features.given=true")
            features = data.load_matrix(features_name, num_features, signed=True)
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
            yield Row(
                text, ids, (features.indices[entries].astype(np.int32), features.data[entries].astype(np.float32))
            )


def _texts(word: str) -> tuple[str, str, str]:
    return f"raw/{word}_X.txt", f"{word}_X.txt", f"X.{word}.txt"
