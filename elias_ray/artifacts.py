"""A run directory: its place, its config, and artifacts that are committed whole or not at all.

An artifact is a folder. Its files are written first and `manifest.json` last, so on any filesystem: no manifest,
no artifact. What a killed or failed step left behind is removed before the step runs again, unless it goes on there.
"""

import errno
import hashlib
import json
import os
import posixpath
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from elias_ray.config import Config, differences, is_uri, parse_config
from elias_ray.errors import UserError

if TYPE_CHECKING:  # tasks that only read and write need no torch
    from elias_ray.workers import Workers

MANIFEST = "manifest.json"
CONFIG = "config.yaml"
LOCK = "lock.json"  # see run_lock.py
BEGUN = "begun.txt"  # what an artifact is made from whose files stay if it is not brought to its end
CONFIG_MARK = "# The config of an elias_ray run."


class NoSpaceError(UserError):
    """A full disk, or a quota that is used up."""


@dataclass(frozen=True)
class FileEntry:
    """What a manifest says of a file."""

    name: str  # within the artifact's folder
    size: int
    sha256: str


@dataclass(frozen=True)
class Folder:
    """A folder on any pyarrow filesystem; picklable, so that Ray tasks can write into it."""

    filesystem: fs.FileSystem
    path: str

    @classmethod
    def at(cls, location: str | os.PathLike[str]) -> "Folder":
        """`location` is a local path or a URI such as s3://bucket/folder."""
        text = os.fspath(location)
        if not is_uri(text):
            return cls(fs.LocalFileSystem(), str(Path(text).absolute()))
        try:
            filesystem, path = fs.FileSystem.from_uri(text)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(f"cannot use {text} as a location: {error}") from None
        return cls(filesystem, path)

    @property
    def location(self) -> str:
        """What `at` takes."""
        local = isinstance(self.filesystem, fs.LocalFileSystem)
        return self.path if local else f"{self.filesystem.type_name}://{self.path}"

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self.filesystem, posixpath.join(self.path, name))

    def exists(self, name: str = "") -> bool:
        found = self.filesystem.get_file_info(posixpath.join(self.path, name) if name else self.path)
        return bool(found.type != fs.FileType.NotFound)

    def files(self, recursive: bool = True) -> dict[str, int]:
        """Name relative to this folder -> size, of every file below it, sorted by name."""
        selector = fs.FileSelector(self.path, recursive=recursive, allow_not_found=True)
        return {
            posixpath.relpath(info.path, self.path): info.size
            for info in sorted(self.filesystem.get_file_info(selector), key=lambda info: info.path)
            if info.type == fs.FileType.File
        }

    def open(self, name: str) -> pa.NativeFile:
        """A seekable binary file."""
        return self.filesystem.open_input_file(posixpath.join(self.path, name))

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return bytes(file.read())

    def checksum(self, name: str) -> str:
        """SHA-256 of a file that may be larger than memory."""
        digest = hashlib.sha256()
        with self.open(name) as file:
            while block := file.read(2**24):
                digest.update(block)
        return digest.hexdigest()

    def entry(self, name: str) -> "FileEntry":
        """Of a file that is there."""
        return FileEntry(name, self.filesystem.get_file_info(posixpath.join(self.path, name)).size, self.checksum(name))

    def read_checked(self, entry: "FileEntry") -> bytes:
        """A file of an artifact, or an error if it is not what was written."""
        content = self.read(entry.name)
        if hashlib.sha256(content).hexdigest() != entry.sha256:
            raise UserError(
                f"{self.path}/{entry.name} is damaged: its SHA-256 is not the manifest's; "
                f"delete the folder {self.path} and run the job again to make it anew"
            )
        return content

    def write(self, name: str, content: bytes) -> FileEntry:
        """Whole or not at all: on a local disk written beside, synced and renamed; on an object store, one put.

        Makes the folder of the file but none above it: a task that is late must not bring a deleted artifact back.
        """
        path = posixpath.join(self.path, name)
        self.filesystem.create_dir(posixpath.dirname(path), recursive=False)
        if isinstance(self.filesystem, fs.LocalFileSystem):
            beside = f"{path}.{os.getpid()}.partial"
            try:
                with open(beside, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                with suppress(OSError):
                    os.remove(beside)
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise NoSpaceError(
                        f"{path}: no space left for its {len(content):,} bytes; free some and run the job again"
                    ) from None
                raise
            os.replace(beside, path)
        else:
            with self.filesystem.open_output_stream(path) as stream:
                stream.write(content)
        return FileEntry(name, len(content), hashlib.sha256(content).hexdigest())

    def write_table(self, name: str, table: pa.Table) -> FileEntry:
        """Parquet with a checksum on every page: a flipped bit is an error when it is read."""
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        return self.write(name, sink.getvalue().to_pybytes())

    def read_table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        try:
            with self.open(name) as file:
                return pq.ParquetFile(file, page_checksum_verification=True).read(columns)
        except (pa.ArrowInvalid, OSError) as error:
            raise UserError(
                f"{posixpath.join(self.path, name)} is missing or damaged ({error}); "
                f"delete the folder {self.path} and run the job again to make it anew"
            ) from None

    def remove(self, name: str) -> None:
        self.filesystem.delete_file(posixpath.join(self.path, name))

    def create(self) -> None:
        self.filesystem.create_dir(self.path, recursive=True)

    def delete(self) -> None:
        """With all that is in it, though tasks that are being cancelled may still be adding their last file."""
        for attempts_left in reversed(range(50)):
            try:
                if self.exists():
                    self.filesystem.delete_dir(self.path)
                return
            except OSError:
                if not attempts_left:
                    raise
                time.sleep(0.1)


@dataclass(frozen=True)
class Manifest:
    files: dict[str, FileEntry]
    facts: dict[str, Any]  # what the step says of its artifact: counts, names, format


def key_of(*artifacts: Folder) -> str:
    """Changes with anything in these committed artifacts: what another was made from."""
    return hashlib.sha256(b"".join(artifact.read(MANIFEST) for artifact in artifacts)).hexdigest()


@contextmanager
def committing(folder: Folder, made_from: str = "") -> Iterator[Manifest]:
    """The body writes files into `folder` and enters them and its facts; they count once the body is through."""
    folder.delete()
    folder.create()
    manifest = Manifest({}, {"made_from": made_from} if made_from else {})
    try:
        yield manifest
    except BaseException:
        folder.delete()
        raise
    write_manifest(folder, manifest)


@contextmanager
def committing_together(folder: Folder, made_from: str, workers: "Workers", go_on: bool = False) -> Iterator[Manifest]:
    """The same for a group of workers that are all in the body at once: each enters its files, the first its facts.

    A worker that fails ends the whole group, so nobody cleans up; the next attempt does. With `go_on`, the body finds
    the files of an attempt before that was made from the same.
    """
    if workers.rank == 0 and not (go_on and folder.exists(BEGUN) and folder.read(BEGUN).decode() == made_from):
        folder.delete()
        folder.create()
        if go_on:
            folder.write(BEGUN, made_from.encode())
    workers.gather_objects(None)
    manifest = Manifest({}, {"made_from": made_from})
    yield manifest
    for files in workers.gather_objects(manifest.files):
        manifest.files.update(files)
    if workers.rank == 0:
        write_manifest(folder, manifest)
        if go_on:
            folder.remove(BEGUN)
    workers.gather_objects(None)


def is_committed(folder: Folder, made_from: str, workers: "Workers") -> bool:
    """Whether the artifact is there; all workers ask at once and get one answer."""
    answers = workers.gather_objects(committed(folder, made_from) is not None)
    if len(set(answers)) > 1:
        raise UserError(f"workers see different files in {folder.path}; --run must be a folder that all nodes share")
    return answers[0]


def write_manifest(folder: Folder, manifest: Manifest) -> None:
    files = {
        e.name: {"size": e.size, "sha256": e.sha256} for e in sorted(manifest.files.values(), key=lambda e: e.name)
    }
    document = {**manifest.facts, "files": files}
    folder.write(MANIFEST, json.dumps(document, indent=1, ensure_ascii=False).encode())


def committed(folder: Folder, made_from: str | None = None) -> Manifest | None:
    """The manifest of a committed artifact whose files are all there in their sizes.

    None if it was never committed, or made from something else than what `made_from` is the key of.
    """
    if not folder.exists(MANIFEST):
        return None
    try:
        facts = json.loads(folder.read(MANIFEST))
        files = {name: FileEntry(name, entry["size"], entry["sha256"]) for name, entry in facts.pop("files").items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder.path}/{MANIFEST} is damaged ({error}); delete {folder.path} and run the job again to make it anew"
        ) from None
    if made_from is not None and facts.get("made_from") != made_from:
        return None
    present = folder.files()
    for entry in files.values():
        if present.get(entry.name) != entry.size:
            found = f"{present[entry.name]} bytes" if entry.name in present else "nothing"
            raise UserError(
                f"{folder.path}/{entry.name}: found {found}, the manifest says {entry.size} bytes; "
                f"delete the folder {folder.path} and run the job again to make it anew"
            )
    return Manifest(files, facts)


def record_config(run: Folder, config: Config) -> None:
    """Write the resolved config into a run; refuse a run whose artifacts were made with another.

    A folder that holds anything but a run is refused too: steps delete what they find in their place.
    """
    try:
        present = {name: size for name, size in run.files().items() if name != LOCK and not name.endswith(".partial")}
        known = run.read(CONFIG).decode(errors="replace") if CONFIG in present else ""
        if present and not known.startswith(CONFIG_MARK):
            raise UserError(f"{run.path} holds files that are not of a run; give --run a new or empty folder")
        # The default dataset depends on its seed alone, which it keeps itself.
        if any(posixpath.basename(name) == MANIFEST and not name.startswith("apidocs/") for name in present):
            place = posixpath.join(run.path, CONFIG)
            changed = differences(parse_config(known, place), config)
            if changed:
                raise UserError(
                    f"{run.path} was made with another config:\n  "
                    + "\n  ".join(changed)
                    + f"\nuse the same values, as with --preset {place}, or another --run folder"
                )
        else:
            run.create()
            run.write(CONFIG, (CONFIG_MARK + "\n" + config.to_yaml()).encode())
    except OSError as error:
        raise UserError(f"cannot use {run.path} as the folder of a run: {error}") from None
