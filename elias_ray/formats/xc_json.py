"""The Extreme Classification Repository's raw data: one JSON object per point and per label."""

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.source import (
    DataFolder,
    LineRange,
    Row,
    Source,
    Split,
    SplitName,
    check_relevance,
    chunk_up,
    clip,
)

NAME = "XC raw JSON"
LOOKED_FOR = "trn.json.gz, tst.json.gz, lbl.json.gz; optional filter_labels_train.txt, filter_labels_test.txt"

SPLITS: dict[SplitName, tuple[str, str]] = {"train": ("trn.json", "train"), "test": ("tst.json", "test")}


def matches(data: DataFolder) -> bool:
    return data.only is None and data.find("trn.json", "lbl.json") is not None


def read(data: DataFolder, config: Config) -> Source:
    label_names = _label_names(data, data.require("lbl.json", because="it names the labels"))
    splits: dict[SplitName, Split] = {}
    for split, (name, word) in SPLITS.items():
        file = data.index_lines(data.require(name, because=f"it holds the {split} points"))
        filter_name = data.find(f"filter_labels_{word}.txt")
        pairs = data.filtered_pairs(filter_name, file.num_rows, len(label_names))
        chunks = chunk_up((lines.num_lines, partial(read_rows, lines, len(label_names))) for lines in file.ranges)
        splits[split] = Split(chunks, pairs)
    return Source(NAME, splits, label_names)


def read_rows(lines: LineRange, num_labels: int) -> Iterator[Row]:
    for number, line in lines.lines():
        point = parse_object(line, lines.name, number)
        ids, relevances = point.get("target_ind"), point.get("target_rel")
        if not isinstance(ids, list):
            raise UserError(
                f"{lines.name}:{number}: target_ind is {clip(json.dumps(ids))}, expected a list of label numbers"
            )
        if relevances is None:
            relevances = [1.0] * len(ids)
        if not isinstance(relevances, list) or len(relevances) != len(ids):
            raise UserError(
                f"{lines.name}:{number}: target_rel is {clip(json.dumps(relevances))}, expected {len(ids)} numbers"
            )
        labels = []
        for label, relevance in zip(ids, relevances, strict=True):
            if type(label) is not int or not 0 <= label < num_labels:
                shown, last = clip(json.dumps(label)), num_labels - 1
                raise UserError(f"{lines.name}:{number}: label {shown} is out of range, allowed 0 to {last}")
            if type(relevance) not in (int, float):
                raise UserError(f"{lines.name}:{number}: relevance {clip(json.dumps(relevance))} is not a number")
            if check_relevance(relevance, lines.name, number) > 0:
                labels.append(label)
        yield Row(_text(point, lines.name, number), labels)


def parse_object(line: str, file: str, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{file}:{number}: not a JSON object: {error}: '{clip(line)}'") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}:{number}: '{clip(line)}', expected a JSON object")
    return value


def _text(point: dict[str, Any], file: str, number: int) -> str:
    parts = [point.get(key) or "" for key in ("title", "content")]
    for part in parts:
        if not isinstance(part, str):
            raise UserError(f"{file}:{number}: title and content must be strings, found {clip(json.dumps(part))}")
    return " ".join(part.strip() for part in parts).strip()


def _label_names(data: DataFolder, name: str) -> list[str]:
    """Titles; products often share one, so where a title is empty or not the only one its uid is added."""
    titles, uids, seen = [], [], dict[str, int]()
    for number, line in data.index_lines(name).lines():
        label = parse_object(line, name, number)
        uid = str(label.get("uid", ""))
        if not uid:
            raise UserError(f"{name}:{number}: a label without a uid: '{clip(line)}'")
        if uid in seen:
            raise UserError(f"{name}:{number}: label uid '{clip(uid)}' stands on line {seen[uid]} already")
        seen[uid] = number
        uids.append(uid)
        titles.append(str(label.get("title") or "").strip())
    repeated = {title for title, count in Counter(titles).items() if count > 1}
    return [
        f"{title} [{uid}]".strip() if not title or title in repeated else title
        for title, uid in zip(titles, uids, strict=True)
    ]
