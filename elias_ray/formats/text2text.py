"""PECOS text2text: 'id,id::weight<TAB>text' per line, and a file that names the labels in order."""

import re
from collections.abc import Iterator
from functools import partial

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
    parse_id,
)

NAME = "PECOS text2text"
LOOKED_FOR = "train*.txt|tsv, test*.txt|tsv with lines '0,1::0.5<TAB>text', and output-labels.txt or output-items.txt"

ITEMS = ("output-labels.txt", "output-items.txt", "output_labels.txt", "output_items.txt", "labels.txt", "Y.txt")


def matches(data: DataFolder) -> bool:
    files = data.split_files((".txt", ".tsv"))
    first = data.first_line(files["train"][0]) if files.get("train") else ""
    return re.match(r"[\d,:.]*\t", first) is not None


def read(data: DataFolder, config: Config) -> Source:
    label_names = data.label_names(data.require(*ITEMS, because="it names the labels in the order of their numbers"))
    splits: dict[SplitName, Split] = {}
    for split, names in data.split_files((".txt", ".tsv")).items():
        ranges = data.line_ranges(names)
        splits[split] = Split(
            chunk_up((lines.num_lines, partial(read_rows, lines, len(label_names))) for lines in ranges)
        )
    return Source(NAME, splits, label_names)


def read_rows(lines: LineRange, num_labels: int) -> Iterator[Row]:
    for number, line in lines.lines():
        head, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{lines.name}:{number}: '{clip(line)}', expected label numbers, a tab and the text")
        labels = []
        for part in head.split(",") if head.strip() else ():
            label, colons, weight = part.strip().partition("::")
            number_of_label = parse_id(label, num_labels, "label", lines.name, number)
            if not colons or check_relevance(_parse_weight(weight, lines.name, number), lines.name, number) > 0:
                labels.append(number_of_label)
        yield Row(text, labels)


def _parse_weight(text: str, file: str, number: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{file}:{number}: weight '{clip(text)}' is not a number") from None
