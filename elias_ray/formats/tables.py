"""Parquet or JSON lines with a text column and a list-of-labels column."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from elias_ray.artifacts import Folder
from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.source import Chunk, Row, Source, Split, SplitName, chunk_up
from elias_ray.formats.values import clip, parse_object

NAME = "Parquet or JSON lines"
LOOKED_FOR = (
    "train*.parquet|jsonl, test*.parquet|jsonl (or train/, test/) with columns data.text_column, data.labels_column"
)

WAY_OUT = "say which columns hold what: data.text_column and data.labels_column, or --text-column of jobs/predict.py"
EXTENSIONS = (".parquet", ".jsonl", ".ndjson", ".json")


def matches(data: DataFolder) -> bool:
    return "train" in data.split_files(EXTENSIONS)


def read(data: DataFolder, config: Config) -> Source:
    columns = (config.data.text_column, config.data.labels_column)
    splits: dict[SplitName, Split] = {}
    for split, names in data.split_files(EXTENSIONS).items():
        tables = [name for name in names if name.endswith(".parquet")]
        if tables and len(tables) < len(names):
            other = next(name for name in names if name not in tables)
            raise UserError(f"both {tables[0]} and {other} claim to hold the {split} points; keep one of them")
        if tables:
            splits[split] = Split(parquet_chunks(data, tables, columns))
        else:
            ranges = data.line_ranges(names, blank_rows=False)
            splits[split] = Split(
                chunk_up((lines.num_lines, partial(read_json_rows, lines, *columns)) for lines in ranges)
            )
    return Source(NAME, splits, label_names=None)


def read_json_rows(lines: LineRange, text_column: str, labels_column: str | None = None) -> Iterator[Row]:
    for number, line in lines.lines():
        point = parse_object(line, lines.name, number)
        for column in filter(None, (text_column, labels_column)):
            if column not in point:
                raise UserError(
                    f"{lines.name}:{number}: no '{column}', found {', '.join(point) or 'nothing'}; {WAY_OUT}"
                )
        labels = point[labels_column] if labels_column else None
        yield _row(point[text_column], labels, f"{lines.name}:{number}")


def read_parquet_rows(
    folder: Folder,
    name: str,
    row_group: int,
    rows: range,
    first_row: int,
    text_column: str,
    labels_column: str | None = None,
) -> Iterator[Row]:
    """`rows` of a row group; the rows before them are decoded and dropped. `first_row` of the file starts the group."""
    row = 0
    try:
        with folder.open(name) as file:
            batches = pq.ParquetFile(file).iter_batches(
                batch_size=len(rows), row_groups=[row_group], columns=list(filter(None, (text_column, labels_column)))
            )
            for batch in batches:
                wanted = batch.slice(max(0, rows.start - row), max(0, rows.stop - max(row, rows.start)))
                number = first_row + max(row, rows.start)
                for point in wanted.to_pylist():
                    number += 1
                    labels = point[labels_column] if labels_column else None
                    yield _row(point[text_column], labels, f"{name}: row {number}")
                row += batch.num_rows
                if row >= rows.stop:
                    return
    except (pa.ArrowInvalid, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: row {first_row + row + 1} or soon after: cannot be read: {error}") from None


def _row(text: Any, labels: Any, where: str) -> Row:
    if text is not None and not isinstance(text, str):
        raise UserError(f"{where}: text {clip(repr(text))} is not a string")
    if labels is not None and not isinstance(labels, list):
        raise UserError(f"{where}: labels {clip(repr(labels))} is not a list")
    for label in labels or ():
        if type(label) not in (str, int) or label == "":
            raise UserError(f"{where}: label {clip(repr(label))} is not a name or a number")
    return Row(text or "", [str(label) for label in labels or ()])


def parquet_chunks(data: DataFolder, names: list[str], columns: tuple[str, ...]) -> list[Chunk]:
    """Chunks of `rows_per_shard` rows within each row group."""
    parts: list[tuple[int, Callable[[], Iterator[Row]]]] = []
    for name in names:
        data.note_use(name, data.folder.checksum(name))
        try:
            with data.folder.open(name) as file:
                parquet = pq.ParquetFile(file)
                schema, metadata = parquet.schema_arrow, parquet.metadata
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"{name}: not a whole Parquet file ({error}); copy or write it again") from None
        for column in columns:
            if column not in schema.names:
                raise UserError(f"{name}: no column '{column}', found {', '.join(schema.names)}; {WAY_OUT}")
        first = 0
        for group in range(metadata.num_row_groups):
            num_rows = metadata.row_group(group).num_rows
            for start in range(0, num_rows, data.rows_per_shard):
                rows = range(start, min(start + data.rows_per_shard, num_rows))
                parts.append((len(rows), partial(read_parquet_rows, data.folder, name, group, rows, first, *columns)))
            first += num_rows
    if not parts:
        raise UserError(f"{names[0]}: the file is empty")
    return chunk_up(parts)
