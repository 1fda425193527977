"""PECOS text2text: 'id,id::weight<TAB>text' per line, and a file that names the labels in order."""

import re
from collections.abc import Iterator
from functools import partial

from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.label_files import read_label_names
from elias_ray.formats.source import Row, Source, Split, SplitName, chunk_up
from elias_ray.formats.values import check_relevance, clip, parse_id, parse_number

NAME = "PECOS text2text"
LOOKED_FOR = "train*.txt|tsv, test*.txt|tsv with lines '0,1::0.5<TAB>text', and output-labels.txt or output-items.txt"

ITEMS = ("output-labels.txt", "output-items.txt", "output_labels.txt", "output_items.txt", "labels.txt", "Y.txt")


def matches(data: DataFolder) -> bool:
    files = data.split_files((".txt", ".tsv"))
    if not files.get("train"):
        return False
    first_line = data.head(files["train"][0]).partition("\n")[0]
    return re.match(r"[\d,:.]*\t", first_line) is not None or ("\t" in first_line and data.find(*ITEMS) is not None)


def read(data: DataFolder, config: Config) -> Source:
    label_names = read_label_names(data, data.require(*ITEMS, because="it names the labels in their order"))
    splits: dict[SplitName, Split] = {}
    for split, names in data.split_files((".txt", ".tsv")).items():
        ranges = data.line_ranges(names, blank_rows=False)
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
            label_id = parse_id(label, num_labels, "label", lines.name, number)
            relevance = parse_number(weight, "weight", lines.name, number) if colons else 1.0
            if check_relevance(relevance, lines.name, number) > 0:
                labels.append(label_id)
        yield Row(text, labels)
