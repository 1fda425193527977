"""The user's data as files: what is there, which split a file belongs to, and where its lines are."""

import gzip
import hashlib
import posixpath
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Literal

import numpy as np
import pyarrow as pa

from elias_ray.artifacts import Folder
from elias_ray.errors import UserError
from elias_ray.formats.source import SplitName
from elias_ray.formats.values import decode

SPLIT_WORDS: dict[SplitName, tuple[str, ...]] = {
    "train": ("train", "trn", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "tst", "testing"),
}
SPLIT_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
WORD = "|".join(SPLIT_OF)
BLOCK_BYTES = 16 << 20
HEAD_BYTES = 64 << 10


@dataclass(frozen=True)
class InputFile:
    name: str
    size: int
    mtime_ns: int | None  # None where the filesystem does not tell
    sha256: str


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
    folder: Folder
    scratch: Folder  # for unpacked copies
    rows_per_shard: int
    homonyms: Literal["refuse", "number"]
    only: str | None = None  # the user gave this one file: it holds all points
    used: dict[str, InputFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every = list(self.folder.files(recursive=self.only is None))  # beside one file may lie anything
        hidden = [name for name in every if any(part.startswith((".", "_")) for part in name.split("/"))]
        packed_twice = [
            name for name in every if name.removesuffix(".gz") != name and name.removesuffix(".gz") in every
        ]
        self.names = [name for name in every if name not in {*hidden, *packed_twice}]

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
        """Files that their name gives to a split, else their folder does.

        train.txt, trn-00001-of-00002.parquet, news.valid, test/part-7.parquet, all of these also under data/.
        """
        if self.only is not None:
            return {"train": [self.only]} if self.only.removesuffix(".gz").endswith(tuple(extensions)) else {}
        found: dict[SplitName, list[str]] = {}
        for name in self.names:
            directory, base = posixpath.split(name.removesuffix(".gz").removeprefix("data/"))
            if not base.endswith(tuple(extensions)) or "/" in directory or (directory and directory not in SPLIT_OF):
                continue
            stem = base.rpartition(".")[0]
            said = re.fullmatch(rf"({WORD})([-_.]?(data|\d[\w-]*))?", stem) or re.fullmatch(rf".+\.({WORD})", base)
            word = said[1] if said else directory
            if word:
                found.setdefault(SPLIT_OF[word], []).append(name)
        return found

    def head(self, name: str) -> str:
        """For a look at what a file is; a damaged one shows itself when it is read."""
        with self.folder.open(name) as file:
            try:
                start = gzip.GzipFile(fileobj=file).read(HEAD_BYTES) if name.endswith(".gz") else file.read(HEAD_BYTES)
            except (EOFError, OSError, zlib.error):
                return ""
        return str(start.removeprefix(b"\xef\xbb\xbf").decode(errors="replace"))

    def index_lines(self, name: str, header: bool = False, blank_rows: bool = True) -> LineFile:
        """One pass over a file: where every `rows_per_shard`-th row starts, and its checksum; a gz is unpacked.

        Where a blank line cannot be a row, those at the end of the file are left out.
        """
        packed, header_lines, digest = name.endswith(".gz"), int(header), hashlib.sha256()
        folder, path = (self.scratch, f"unpacked-{len(self.used)}") if packed else (self.folder, name)
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
        self.note_use(name, digest.hexdigest())
        if not blank_rows:
            blank = last_block[len(last_block.rstrip(b" \t\r\n")) :]
            position, newlines = position - len(blank), newlines - blank.count(b"\n")
            last_block = last_block.removesuffix(blank)
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

    def line_ranges(self, names: list[str], blank_rows: bool) -> list[LineRange]:
        """Of a split whose rows are the lines of one or more files."""
        return [lines for name in names for lines in self.index_lines(name, blank_rows=blank_rows).ranges]

    def note_use(self, name: str, sha256: str) -> None:
        info = self.folder.filesystem.get_file_info(posixpath.join(self.folder.path, name))
        self.used[name] = InputFile(name, info.size, info.mtime_ns, sha256)


def _plain_blocks(file: pa.NativeFile, digest: "hashlib._Hash") -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
        yield block


def _unpacked_blocks(file: pa.NativeFile, name: str, digest: "hashlib._Hash") -> Iterator[bytes]:
    for _ in _plain_blocks(file, digest):  # the checksum is that of the packed file
        pass
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
