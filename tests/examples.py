"""The same forty points in each of the formats that people have, for tests."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse as sp

from elias_ray.config import Config, load_config

# Settings for these points. Without dropout on phi(x), and with phi as it is, nothing depends on who computes what.
# Shards of unequal size.
SETTINGS = (
    *("data.rows_per_shard=8", "clusters.count=4", "search.beam=2", "search.shortlist=6", "search.labels_per_row=5"),
    *("encoder.dropout=0", "training.batch_size=12", "training.start=centroids", "training.table_update_every=2"),
    *("stage1.frozen_epochs=2", "stage1.epochs=0", "stage2.frozen_epochs=2", "stage2.epochs=0"),
    *("clusters.recluster_after=null", "resources.ranker_pairs_per_block=40", "calibration.pairs_per_leaf=2"),
)


ROOT = Path(__file__).parents[1]


def job(
    name: str, *arguments: str, ray_address: str = "", lines: str | None = None
) -> subprocess.CompletedProcess[str]:
    """As a user runs it. With `ray_address` it joins that Ray, else it starts one of its own."""
    command = [sys.executable, str(ROOT / "jobs" / name), *arguments]
    environment = {**os.environ, "RAY_ADDRESS": ray_address}
    return subprocess.run(command, input=lines, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=250)


def settings(data: Path, *changes: str) -> Config:
    return load_config("apidocs", [*SETTINGS, *changes], data_path=str(data))


LABELS = ["apple", "banana", "cherry", "date", "elder", "fig", "grape", "hazel"]  # sorted: ids are the same everywhere


@dataclass(frozen=True)
class Point:
    text: str
    labels: tuple[int, ...]


def points(count: int, seed: int) -> list[Point]:
    rng = np.random.default_rng(seed)
    words = ["red", "round", "sweet", "sour", "small", "tree", "bush", "nut", "größe", "früh", "winter", "summer"]
    made = []
    for number in range(count):
        labels = sorted(rng.choice(len(LABELS), size=rng.integers(1, 4), replace=False).tolist())
        chosen = rng.choice(words, size=rng.integers(3, 8)).tolist()
        made.append(Point(" ".join([*chosen, f"number{number}", f"kind{labels[0]}"]), tuple(labels)))
    return made


TRAIN = points(30, seed=1)
TEST = points(10, seed=2)
SPLITS = {"train": TRAIN, "test": TEST}


def write_text(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(line + "\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, encoding="utf-8")


def label_matrix(split: Sequence[Point]) -> sp.csr_matrix:
    rows = [row for row, point in enumerate(split) for _ in point.labels]
    columns = [label for point in split for label in point.labels]
    return sp.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(len(split), len(LABELS)))


def names(point: Point) -> list[str]:
    return [LABELS[label] for label in point.labels]


def pecos_npz(folder: Path) -> None:
    write_text(folder / "raw/Y.txt", LABELS)
    for word, split in (("trn", TRAIN), ("tst", TEST)):
        write_text(folder / f"raw/{word}_X.txt", [point.text for point in split])
        sp.save_npz(folder / f"Y.{word}.npz", label_matrix(split))


def xc_json(folder: Path) -> None:
    write_text(folder / "lbl.json.gz", [json.dumps({"uid": f"L{i}", "title": name}) for i, name in enumerate(LABELS)])
    for word, split in (("trn", TRAIN), ("tst", TEST)):
        lines = [
            json.dumps(
                {
                    "uid": f"{word}{row}",
                    "title": point.text.split(" ", 1)[0],
                    "content": point.text.split(" ", 1)[1],
                    "target_ind": list(point.labels),
                    "target_rel": [1.0] * len(point.labels),
                }
            )
            for row, point in enumerate(split)
        ]
        write_text(folder / f"{word}.json.gz", lines)
    for word in ("train", "test"):
        write_text(folder / f"filter_labels_{word}.txt", ["0 1", "3 7", "3 2"])


def xc_sparse(folder: Path) -> None:
    write_text(folder / "Y.txt", LABELS)
    for word, split in (("trn", TRAIN), ("tst", TEST)):
        rows = [f"{','.join(map(str, p.labels))} {row % 5}:0.5 7:{row + 1}.25" for row, p in enumerate(split)]
        write_text(folder / f"{word}_X_Y.txt", [f"{len(split)} 9 {len(LABELS)}", *rows])
        write_text(folder / f"raw/{word}_X.txt", [point.text for point in split])


def lightxml(folder: Path) -> None:
    for word, split in SPLITS.items():
        write_text(folder / f"{word}_raw_texts.txt", [point.text for point in split])
        write_text(folder / f"{word}_labels.txt", [" ".join(names(point)) for point in split])


def text2text(folder: Path) -> None:
    write_text(folder / "output-labels.txt", LABELS)
    for word, split in SPLITS.items():
        lines = [f"{','.join(f'{label}::0.5' for label in point.labels)}\t{point.text}" for point in split]
        write_text(folder / f"{word}.txt", lines)


def fasttext(folder: Path) -> None:
    for word, split in SPLITS.items():
        lines = [" ".join([*(f"__label__{name}" for name in names(p)), p.text]) for p in split]
        write_text(folder / f"fruit.{word}", lines)


def json_lines(folder: Path) -> None:
    for word, split in SPLITS.items():
        lines = [json.dumps({"text": p.text, "labels": names(p)}, ensure_ascii=False) for p in split]
        write_text(folder / f"{word}.jsonl", lines)


def parquet(folder: Path) -> None:
    for word, split in SPLITS.items():
        table = pa.table({"text": [p.text for p in split], "labels": [names(p) for p in split]})
        (folder / word).mkdir(parents=True)
        pq.write_table(table.slice(0, 7), folder / word / "part-0.parquet")
        pq.write_table(table.slice(7), folder / word / "part-1.parquet", row_group_size=11)


FORMATS: dict[str, Callable[[Path], None]] = {
    "raw text + npz (ELIAS/PECOS)": pecos_npz,
    "XC raw JSON": xc_json,
    "XC sparse text": xc_sparse,
    "LightXML/AttentionXML texts and labels": lightxml,
    "PECOS text2text": text2text,
    "fastText": fasttext,
    "Parquet or JSON lines": json_lines,
    "Parquet or JSON lines (Parquet)": parquet,
}
