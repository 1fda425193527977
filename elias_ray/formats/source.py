"""What every format gives: splits of chunks of rows, and the label names; and how files are found and checked.

A format first looks over its files (counts lines, checks headers, unpacks gz) and lists chunks: pieces of a split that
any worker can read alone. The rows themselves are read, and every value in them checked, where the chunk is read.
"""

import gzip
import hashlib
import math
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.sparse as sp

from elias_ray.artifacts import Folder
from elias_ray.errors import UserError

SplitName = Literal["train", "validation", "test"]
SPLIT_WORDS: dict[SplitName, tuple[str, ...]] = {
    "train": ("train", "trn", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "tst", "testing"),
}
BLOCK_BYTES = 16 << 20


class Row(NamedTuple):
    text: str
    labels: Sequence[int] | Sequence[str]  # ids, or names where the source has no list of labels
    features: tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]] | None = None  # columns, values


@dataclass(frozen=True)
class Chunk:
    """Rows `first_row` ... of a split; `read` is picklable and needs nothing else."""

    first_row: int
    num_rows: int
    read: Callable[[], Iterator[Row]]


@dataclass(frozen=True)
class Split:
    chunks: list[Chunk]
    filtered_pairs: npt.NDArray[np.int64] | None = None  # (pairs, 2): row, label whose score does not count

    @property
    def num_rows(self) -> int:
        return sum(chunk.num_rows for chunk in self.chunks)


@dataclass(frozen=True)
class InputFile:
    name: str
    size: int
    mtime_ns: int | None  # None where the filesystem does not tell
    sha256: str


@dataclass(frozen=True)
class Source:
    format: str
    splits: dict[SplitName, Split]
    label_names: list[str] | None  # None: the rows carry names
    num_features: int | None = None  # columns of the features that come with the rows


@dataclass(frozen=True)
class LineRange:
    """Some lines of a file, read without the rest of it."""

    name: str  # as the user knows it
    folder: Folder
    path: str  # within `folder`: the file itself, or its unpacked copy
    offset: int
    length: int
    first_line: int  # 1-based
    num_lines: int

    def lines(self) -> Iterator[tuple[int, str]]:
        with self.folder.open(self.path) as file:
            file.seek(self.offset)
            content = file.read(self.length)
        for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), self.first_line):
            yield number, decode(line, self.name, number)


@dataclass(frozen=True)
class LineFile:
    """A text file after one pass over its bytes."""

    name: str
    header: str | None
    ranges: list[LineRange]
    num_rows: int

    def lines(self) -> Iterator[tuple[int, str]]:
        for part in self.ranges:
            yield from part.lines()


@dataclass
class DataFolder:
    """The user's data: what is there, and the looks that formats take at it."""

    folder: Folder
    names: list[str]  # files below the folder
    scratch: Folder  # for unpacked copies
    rows_per_shard: int
    homonyms: Literal["refuse", "number"]
    only: str | None = None  # the user gave this one file: it holds all points
    used: dict[str, InputFile] = field(default_factory=dict)

    def find(self, *names: str) -> str | None:
        """The first of these files that is there, plain or as .gz."""
        for name in names:
            for candidate in (name, name + ".gz"):
                if candidate in self.names:
                    return candidate
        return None

    def require(self, *names: str, because: str) -> str:
        found = self.find(*names)
        if found is None:
            raise UserError(f"{self.folder.path}: no {' or '.join(names)}, which is needed because {because}")
        return found

    def split_files(self, extensions: Sequence[str]) -> dict[SplitName, list[str]]:
        """Files named after a split: train.txt, trn-00001-of-00002.parquet, news.valid, test/part-7.parquet."""
        endings = tuple(e for extension in extensions for e in (extension, extension + ".gz"))
        if self.only is not None:
            return {"train": [self.only]} if self.only.endswith(endings) else {}
        found: dict[SplitName, list[str]] = {}
        for name in self.names:
            if not name.endswith(endings):
                continue
            directory, base = posixpath.split(name)
            for split, words in SPLIT_WORDS.items():
                word = "|".join(words)
                if (
                    re.match(rf"({word})([-_.]|$)", base)
                    or re.search(rf"\.({word})(\.gz)?$", base)
                    or posixpath.basename(directory) in words
                ):
                    found.setdefault(split, []).append(name)
        return found

    def index_lines(self, name: str, header: bool = False) -> LineFile:
        """One pass over a file: where every `rows_per_shard`-th row starts, and its checksum; a gz is unpacked."""
        packed, header_lines, digest = name.endswith(".gz"), int(header), hashlib.sha256()
        folder, path = (self.scratch, name.removesuffix(".gz").replace("/", "_")) if packed else (self.folder, name)
        starts = [] if header else [0]
        position, newlines, first_block, last_block = 0, 0, b"", b""
        with self.folder.open(name) as file, ExitStack() as stack:
            sink = None
            if packed:
                folder.create()
                sink = stack.enter_context(folder.filesystem.open_output_stream(posixpath.join(folder.path, path)))
            for block in _unpacked_blocks(file, name, digest) if packed else _plain_blocks(file, digest):
                if sink is not None:
                    sink.write(block)
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                row_after = np.arange(newlines + 1, newlines + 1 + len(ends)) - header_lines
                starts.extend((ends[row_after % self.rows_per_shard == 0] + position + 1).tolist())
                newlines, position = newlines + len(ends), position + len(block)
                first_block, last_block = first_block or block, block
        self._note_use(name, digest.hexdigest())
        num_rows = newlines + (not last_block.endswith(b"\n")) - header_lines
        if position == 0 or num_rows <= 0:
            raise UserError(f"{name}:{newlines + 1}: the file {'ends after its header' if position else 'is empty'}")
        bounds = [start for start in starts if start < position] + [position]
        ranges = []
        for first_row, (start, end) in zip(count(step=self.rows_per_shard), pairwise(bounds), strict=False):
            rows = min(self.rows_per_shard, num_rows - first_row)
            ranges.append(LineRange(name, folder, path, start, end - start, 1 + header_lines + first_row, rows))
        header_text = decode(first_block.split(b"\n", 1)[0], name, 1) if header else None
        return LineFile(name, header_text, ranges, num_rows)

    def _note_use(self, name: str, sha256: str) -> None:
        info = self.folder.filesystem.get_file_info(posixpath.join(self.folder.path, name))
        self.used[name] = InputFile(name, info.size, info.mtime_ns, sha256)

    def line_ranges(self, names: list[str]) -> list[LineRange]:
        """Of a split whose rows are the lines of one or more files."""
        return [lines for name in names for lines in self.index_lines(name).ranges]

    def first_line(self, name: str) -> str:
        """For a look at what a file is; a damaged one shows itself when it is read."""
        with self.folder.open(name) as file:
            try:
                start = gzip.GzipFile(fileobj=file).read(4096) if name.endswith(".gz") else file.read(4096)
            except (EOFError, OSError, zlib.error):
                return ""
        return str(start.split(b"\n", 1)[0].decode(errors="replace"))

    def checksum(self, name: str) -> None:
        digest = hashlib.sha256()
        with self.folder.open(name) as file:
            for _ in _plain_blocks(file, digest):
                pass
        self._note_use(name, digest.hexdigest())

    def load_matrix(self, name: str, num_columns: int | None = None, signed: bool = False) -> sp.csr_matrix:
        """A scipy npz: finite (and unless `signed`, non-negative) values, every column in range; zeros are dropped."""
        content = self.folder.read(name)
        self._note_use(name, hashlib.sha256(content).hexdigest())
        try:
            matrix = sp.load_npz(pa.BufferReader(content)).tocsr()
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, IndexError) as error:
            raise UserError(
                f"{name}: not a whole scipy sparse matrix ({error or type(error).__name__}); copy or write it again"
            ) from None
        if num_columns is not None and matrix.shape[1] != num_columns:
            raise UserError(f"{name}: {matrix.shape[1]} columns, expected {num_columns} as in the other files")
        bad = (matrix.indices < 0) | (matrix.indices >= matrix.shape[1])
        if bad.any():
            row, value = _first(matrix, bad, matrix.indices)
            raise UserError(f"{name}: row {row}: column {value} is out of range, allowed 0 to {matrix.shape[1] - 1}")
        bad = ~np.isfinite(matrix.data) | ((matrix.data < 0) & (not signed))
        if bad.any():
            row, value = _first(matrix, bad, matrix.data)
            raise UserError(
                f"{name}: row {row}: value {value}, expected a finite{'' if signed else ', non-negative'} number"
            )
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix

    def label_names(self, name: str) -> list[str]:
        """A label name per line, in the order of the ids."""
        seen: dict[str, int] = {}
        for number, line in self.index_lines(name).lines():
            label = line.strip()
            if not label:
                raise UserError(f"{name}:{number}: a label without a name")
            if label in seen and self.homonyms == "refuse":
                raise UserError(
                    f"{name}:{number}: label name '{clip(label)}' stands on line {seen[label]} already; "
                    "if they are two labels, data.homonyms=number tells them apart"
                )
            seen[f"{label} [{number - 1}]" if label in seen else label] = number
        return list(seen)

    def filtered_pairs(self, name: str | None, num_rows: int, num_labels: int) -> npt.NDArray[np.int64] | None:
        """Lines 'row label' of a filter_labels file."""
        if name is None:
            return None
        pairs = []
        for number, line in self.index_lines(name).lines():
            parts = line.split()
            if len(parts) != 2:
                raise UserError(f"{name}:{number}: '{clip(line)}', expected a row and a label number")
            row = parse_id(parts[0], num_rows, "row", name, number)
            pairs.append((row, parse_id(parts[1], num_labels, "label", name, number)))
        return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def chunk_up(parts: Iterable[tuple[int, Callable[[], Iterator[Row]]]]) -> list[Chunk]:
    """Chunks from (number of rows, reader) in the order of the rows."""
    chunks: list[Chunk] = []
    first_row = 0
    for num_rows, read in parts:
        chunks.append(Chunk(first_row, num_rows, read))
        first_row += num_rows
    return chunks


def require_same_rows(first: str, first_rows: int, second: str, second_rows: int) -> None:
    if first_rows != second_rows:
        shorter = min(first_rows, second_rows)
        raise UserError(
            f"{first} has {first_rows} rows but {second} has {second_rows}; they must match line by line "
            f"(the first without a partner is line {shorter + 1})"
        )


def decode(line: bytes, file: str, number: int) -> str:
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")  # a byte-order mark
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(
            f"{file}:{number}: byte 0x{byte:02x} at column {error.start + 1} is not UTF-8; convert the file to UTF-8"
        ) from None


def parse_id(text: str, count: int, what: str, file: str, number: int) -> int:
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{file}:{number}: '{clip(text)}' is not a {what} number")
    value = int(text)
    if value >= count:
        raise UserError(f"{file}:{number}: {what} {value} is out of range, allowed 0 to {count - 1}")
    return value


def check_relevance(value: float, file: str, number: int) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{file}:{number}: relevance {value}, expected a finite, non-negative number")
    return value


def clip(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _first(
    matrix: sp.csr_matrix, bad: npt.NDArray[np.bool_], values: npt.NDArray[np.generic]
) -> tuple[int, np.generic]:
    """The 1-based row and the value of the first bad entry."""
    entry = int(np.flatnonzero(bad)[0])
    return int(np.searchsorted(matrix.indptr, entry, side="right")), values[entry]


def _plain_blocks(file: pa.NativeFile, digest: "hashlib._Hash") -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
        yield block


def _unpacked_blocks(file: pa.NativeFile, name: str, digest: "hashlib._Hash") -> Iterator[bytes]:
    for block in _plain_blocks(file, digest):  # the checksum is that of the packed file
        del block
    file.seek(0)
    lines = 0
    try:
        with gzip.open(file) as stream:
            while block := stream.read(BLOCK_BYTES):
                lines += block.count(b"\n")
                yield block
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(
            f"{name}:{lines + 1}: the gzip data breaks off or is damaged here ({error}); copy it again"
        ) from None
