"""Texts alone, to be predicted: a text a line, or a column of Parquet or JSON lines; .gz too."""

from collections.abc import Iterator
from functools import partial

from elias_ray.artifacts import Folder
from elias_ray.errors import UserError
from elias_ray.formats import locate
from elias_ray.formats.data_folder import DataFolder, LineRange
from elias_ray.formats.source import Chunk, Row, chunk_up
from elias_ray.formats.tables import parquet_chunks, read_json_rows


def text_chunks(path: str, text_column: str, scratch: Folder, rows_per_chunk: int) -> list[Chunk]:
    """Pieces of the file in its order, none larger than `rows_per_chunk`, each to be read where it is predicted."""
    folder, name = locate(path)
    if name is None:
        raise UserError(f"{path}: no such file" if not folder.exists() else f"{path} is a folder; give a file")
    data = DataFolder(folder, scratch, rows_per_chunk, homonyms="refuse", only=name)
    plain = name.removesuffix(".gz")
    if plain.endswith(".parquet"):
        return parquet_chunks(data, [name], (text_column,))
    if plain.endswith((".jsonl", ".ndjson", ".json")):
        lines = data.line_ranges([name], blank_rows=False)
        return chunk_up((part.num_lines, partial(read_json_rows, part, text_column)) for part in lines)
    return chunk_up((part.num_lines, partial(_read_lines, part)) for part in data.line_ranges([name], blank_rows=True))


def _read_lines(lines: LineRange) -> Iterator[Row]:
    for _, line in lines.lines():
        yield Row(line, [])
