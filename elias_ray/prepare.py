"""Step 1 of a run: the user's data, validated, tokenised and weighted, as Parquet shards.

Two passes on Ray Data, each a stream of chunks (see shards.py), so that no process ever holds all texts. Between
them the driver merges the chunks' own numberings of labels and terms; it sees names and counts, never texts. (The
matrices of npz data are the exception: they come whole and the driver deals them out.)
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tqdm import tqdm

from elias_ray import apidocs, generated
from elias_ray.artifacts import Folder, Manifest, committed, committing
from elias_ray.clusters import choose_num_clusters
from elias_ray.config import Config
from elias_ray.data import LABELS, SPLITS, TERMS, Prepared
from elias_ray.errors import UserError
from elias_ray.features import Dictionary, Ids, inverse_document_frequency
from elias_ray.formats import locate, open_data
from elias_ray.formats.source import Source, SplitName
from elias_ray.shards import FinishPiece, Numbering, Piece, ReadPiece, ReadResult, Shard, Tally, Written
from elias_ray.streaming import stream
from elias_ray.tokenizer import load_tokenizer

Item = TypeVar("Item")
Counted = TypeVar("Counted", ReadResult, Written)


def prepare(run: Folder, config: Config) -> Prepared:
    """The prepared data of the run; made now unless the run has it."""
    folder = run / "prepare"
    load_tokenizer(config.encoder.name, config.encoder.max_length)  # a missing encoder is an error now, not in a worker
    path = _built(run, config) or config.data.path
    if (done := committed(folder)) is not None:
        _require_unchanged(path, done.facts["input_files"])
        print(f"prepare: done before ({folder.path})")
        return Prepared(folder, done.facts)
    started = time.monotonic()
    with committing(folder) as manifest:
        scratch = folder / "scratch"
        source, data = open_data(path, config, scratch)
        print(f"prepare: {config.data.path} is {source.format}")
        manifest.facts.update(
            format=source.format, data=config.data.path, input_files=[asdict(f) for f in data.used.values()]
        )
        _write_shards(source, config, folder, scratch, manifest)
        scratch.delete()
    print(summary(manifest.facts))
    seconds, megabytes = time.monotonic() - started, sum(file.size for file in data.used.values()) / 1e6
    rows = sum(split["points"] for split in manifest.facts["splits"].values())
    print(f"prepare: {seconds:.1f} s, {rows / seconds:,.0f} rows/s, {megabytes / seconds:.2f} MB/s of input")
    return Prepared(folder, manifest.facts)


def draw_splits(source: Source, validation_points: int, seed: int) -> dict[SplitName, npt.NDArray[np.int8]]:
    """For every row of every split of the source, the place in SPLITS where it goes.

    Data without validation points gives `validation_points` of its training points, or a tenth if that is fewer;
    data without test points gives a tenth as well.
    """
    targets = {split: np.full(part.num_rows, SPLITS.index(split), np.int8) for split, part in source.splits.items()}
    if "train" not in targets:
        raise UserError(f"no training points: {source.format} found only {', '.join(targets)}")
    order = np.random.default_rng(seed).permutation(len(targets["train"]))
    for split in SPLITS:
        if split in targets:
            continue
        tenth = max(1, len(targets["train"]) // 10)
        size = min(validation_points, tenth) if split == "validation" else tenth
        if size >= len(order):
            raise UserError(f"{len(targets['train'])} training points are too few to hold out {split} points")
        held_out, order = order[:size], order[size:]
        targets["train"][held_out] = SPLITS.index(split)
    return targets


def summary(facts: dict[str, Any]) -> str:
    """What a person would want to know of the data."""
    splits = facts["splits"]

    def line(name: str, value: Callable[[dict[str, int]], str]) -> str:
        return f"{name:<28}" + "".join(f"{value(splits[split]):>14}" for split in SPLITS)

    def mean(key: str) -> Callable[[dict[str, int]], str]:
        return lambda split: f"{split[key] / split['points']:.2f}" if split["points"] else "-"

    def total(key: str) -> Callable[[dict[str, int]], str]:
        return lambda split: f"{split[key]:,}"

    trained = facts["num_labels"] - facts["labels_never_trained"]
    return "\n".join(
        [
            f"{'':<28}" + "".join(f"{split:>14}" for split in SPLITS),
            line("points", total("points")),
            line("labels/point", mean("labels")),
            line("tokens kept/point", mean("tokens")),
            line("texts cut at max_length", total("truncated")),
            line("empty texts", total("empty_texts")),
            line("points without labels", total("without_labels")),
            f"{'labels':<28}{facts['num_labels']:>14,}",
            f"{'labels never trained':<28}{facts['labels_never_trained']:>14,}",
            f"{'points/trained label':<28}{splits['train']['labels'] / max(1, trained):>14.2f}",
            f"{'tf-idf terms':<28}{facts['num_terms']:>14,}",
            f"{'test texts seen in training':<28}{facts['test_texts_in_training']:>14,}",
        ]
    )


@dataclass(frozen=True)
class Merged:
    """What all chunks together say, once each was read."""

    label_names: list[str]
    label_counts: npt.NDArray[np.int64]  # training points of each label
    terms: list[str]
    document_frequency: npt.NDArray[np.int64]
    idf: npt.NDArray[np.float32]
    tallies: dict[SplitName, Tally]
    numberings: list[Numbering]


def _write_shards(source: Source, config: Config, folder: Folder, scratch: Folder, manifest: Manifest) -> None:
    merged = _read_chunks(source, config, scratch)
    if not merged.label_counts.any():
        raise UserError(f"{config.data.path}: no training point has a label")
    choose_num_clusters(len(merged.label_names), config)  # an error now, while nothing is committed
    num_terms = source.num_features if config.features.given else len(merged.terms)
    if not num_terms:
        least = config.features.min_document_frequency
        raise UserError(f"{config.data.path}: no word of two letters or more occurs in {least} training texts or more")

    labels = pa.table({"name": merged.label_names, "frequency": merged.label_counts})
    terms = pa.table({"term": merged.terms, "document_frequency": merged.document_frequency, "idf": merged.idf})
    finish = FinishPiece(folder, scratch, num_terms, config.features.given, config.features.sublinear_tf)
    shards: list[Shard] = []
    num_rows = sum(tally.points for tally in merged.tallies.values())
    with _progressing(merged.numberings, finish, "weigh, write", num_rows) as results:
        for written in results:
            shards.extend(written.shards)
    entries = [folder.write_table(LABELS, labels), folder.write_table(TERMS, terms), *(s.file for s in shards)]
    manifest.files.update({entry.name: entry for entry in entries})

    def hashes(*splits: SplitName) -> npt.NDArray[np.uint64]:
        every = np.concatenate([shard.text_hashes for shard in shards if shard.split in splits])
        return every[every != 0]

    manifest.facts.update(
        num_labels=len(merged.label_names),
        num_terms=num_terms,
        labels_never_trained=int((merged.label_counts == 0).sum()),
        test_texts_in_training=int(np.isin(hashes("test"), hashes("train", "validation")).sum()),
        splits={
            split: {
                **asdict(merged.tallies[split]),
                "shards": dict(sorted((s.file.name, len(s.text_hashes)) for s in shards if s.split == split)),
            }
            for split in SPLITS
        },
    )


def _read_chunks(source: Source, config: Config, scratch: Folder) -> Merged:
    """First pass, and the chunks' own numbers of labels and terms made into common ones."""
    pieces = list(_pieces(source, draw_splits(source, config.data.validation_points, config.seed)))
    read = ReadPiece(scratch, config.encoder.name, config.encoder.max_length, config.features.given)
    labels, terms = Dictionary(), Dictionary()
    label_names, label_counts = source.label_names, np.zeros(len(source.label_names or ()), np.int64)
    tallies: dict[SplitName, Tally] = {split: Tally() for split in SPLITS}
    numbers: list[tuple[str, Ids, Ids]] = []  # of a piece: its name, its labels and its terms
    with _progressing(pieces, read, "read, tokenise", sum(piece.chunk.num_rows for piece in pieces)) as results:
        for result in results:
            if result.error:
                raise UserError(result.error)
            if label_names is None:
                label_numbers = labels.add([str(name) for name in result.labels], result.label_counts)
            else:
                label_numbers = np.array(result.labels, np.int32)
                label_counts[label_numbers] += result.label_counts
            numbers.append((result.name, label_numbers, terms.add(result.terms, result.document_frequency)))
            for split, tally in result.tallies.items():
                tallies[split].add(tally)

    if label_names is None:
        label_names, label_counts, final_labels = labels.in_order(numeric=True)
    else:
        final_labels = np.arange(len(label_names), dtype=np.int32)
    term_names, document_frequency, final_terms = terms.in_order(
        config.features.min_document_frequency, config.features.max_terms
    )
    idf = inverse_document_frequency(document_frequency, tallies["train"].points)
    idf_or_none = np.append(idf, np.float32(0))  # -1, not kept, takes the last
    numberings = [
        Numbering(name, final_labels[label_numbers], columns, idf_or_none[columns])
        for name, label_numbers, term_numbers in numbers
        for columns in [final_terms[term_numbers]]
    ]
    return Merged(label_names, label_counts, term_names, document_frequency, idf, tallies, numberings)


@contextmanager
def _progressing(
    items: Sequence[Item], work: Callable[[Item], Counted], description: str, total: int
) -> Iterator[Iterator[Counted]]:
    """The stream of results with a bar; tasks still under way end with the block, not when somebody collects it."""
    with (
        tqdm(total=total, desc=description, unit=" rows", mininterval=1) as bar,
        closing(stream(items, work)) as results,
    ):

        def counted() -> Iterator[Counted]:
            for result in results:
                bar.update(result.rows)
                yield result

        yield counted()


def _pieces(source: Source, targets: dict[SplitName, npt.NDArray[np.int8]]) -> Iterator[Piece]:
    """Every chunk of every split; the names sort in the order of the rows."""
    for split, part in source.splits.items():
        for number, chunk in enumerate(part.chunks):
            start, stop = chunk.first_row, chunk.first_row + chunk.num_rows
            pairs = part.filtered_pairs
            if pairs is not None:
                pairs = pairs[slice(*np.searchsorted(pairs[:, 0], (start, stop)))] - (start, 0)
            yield Piece(f"{split}-{number:06d}", chunk, targets[split][start:stop], pairs)


def _require_unchanged(path: str | Folder, input_files: list[dict[str, Any]]) -> None:
    """Going on with a run whose data has changed would mix two datasets. Data that is gone is no longer needed."""
    folder, _ = locate(path)
    for known in input_files:
        info = folder.filesystem.get_file_info(f"{folder.path}/{known['name']}")
        if not info.is_file or (info.size == known["size"] and info.mtime_ns == known["mtime_ns"]):
            continue
        if info.size != known["size"] or folder.checksum(known["name"]) != known["sha256"]:
            raise UserError(f"{info.path} has changed since this run was prepared from it; use another --run folder")


def place_of_built(run: Folder, config: Config) -> Folder | None:
    """Where a dataset that we make ourselves lies in this run."""
    if config.data.path == "apidocs":
        return run / "apidocs"
    return run / "generated" if config.data.path.startswith(generated.PREFIX) else None


def _built(run: Folder, config: Config) -> Folder | None:
    """The same; made now unless the run has it."""
    folder = place_of_built(run, config)
    if config.data.path == "apidocs" and folder is not None:
        _build_apidocs(folder, config.seed)
    elif folder is not None and committed(folder) is None:
        with committing(folder) as manifest:
            entries = generated.build(folder, generated.Size.of(config.data.path), config.seed)
            manifest.files.update({entry.name: entry for entry in entries})
    return folder


def _build_apidocs(folder: Folder, seed: int) -> None:
    done = committed(folder)
    if done is None or done.facts["seed"] != seed:
        with committing(folder) as manifest:
            built = apidocs.build(folder, seed)
            manifest.files.update({entry.name: entry for entry in built.written})
            manifest.facts["seed"] = seed
        skipped = f", {len(built.skipped_files)} of them not for this Python" if built.skipped_files else ""
        print(f"apidocs: {built.rows:,} docstrings and what they call, from {built.files:,} files{skipped}")
