"""New texts, from a file of any size or from standard input, to label names: as JSON lines or Parquet.

A file goes through in chunks, on actors that hold the whole model (Ray Data), or on workers that share one
(inference.sharded). Its rows come out in their order. The output is there whole or not at all.
"""

import json
import os
import posixpath
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch
from tqdm import tqdm

from elias_ray.artifacts import Folder
from elias_ray.cli import connect_to_ray
from elias_ray.config import Config, is_uri
from elias_ray.errors import UserError
from elias_ray.formats.source import Chunk
from elias_ray.formats.texts import text_chunks
from elias_ray.memory import points_at_once
from elias_ray.predict import dealt
from elias_ray.predictor import Prediction, check_top_k, load
from elias_ray.streaming import stream_through_actors
from elias_ray.worker_group import Bar, Worker, run_on_workers

ROWS_PER_CHUNK = 4096
PARQUET = pa.schema(
    [
        ("row", pa.int64()),
        ("text", pa.large_string()),
        ("labels", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("explanation", pa.large_string()),  # JSON; null unless asked for
    ]
)


@dataclass(frozen=True)
class Question:
    """What to say of each text."""

    run: str
    overrides: tuple[str, ...]
    top_k: int
    explain: bool

    @classmethod
    def of(cls, run: str, overrides: Sequence[str], top_k: int, explain: bool) -> "Question":
        """Workers may have another working directory."""
        check_top_k(top_k)
        return cls(run if is_uri(run) else os.path.abspath(run), tuple(overrides), top_k, explain)


def answers(texts: list[str], found: list[list[Prediction]], first_row: int) -> list[dict[str, Any]]:
    return [
        {"row": row, "text": text, "labels": [prediction.as_dict() for prediction in predictions]}
        for row, (text, predictions) in enumerate(zip(texts, found, strict=True), first_row)
    ]


def predict_stdin(question: Question, output: str | None) -> None:
    """As lines come, without Ray."""
    model = load(question.run, question.overrides)
    with _writing(output) as write:
        for row, line in enumerate(sys.stdin):
            text = line.rstrip("\r\n")
            write(answers([text], model.predict([text], question.top_k, question.explain), row))


def predict_file(question: Question, config: Config, source: str, text_column: str, output: str | None) -> None:
    scratch = Folder.at(question.run) / f"predicting-{uuid.uuid4().hex}"  # where all nodes can read; often not needed
    try:
        chunks = text_chunks(source, text_column, scratch, ROWS_PER_CHUNK)
        connect_to_ray()
        if config.inference.sharded:
            parts = _by_workers(question, config, chunks, scratch)
        else:
            parts = _by_actors(question, chunks)
        total = sum(chunk.num_rows for chunk in chunks)
        with _writing(output) as write, tqdm(total=total, desc="predict", unit=" texts", disable=None) as bar:
            for rows in parts:
                write(rows)
                bar.update(len(rows))
    finally:
        scratch.delete()


def _by_actors(question: Question, chunks: list[Chunk]) -> Iterator[list[dict[str, Any]]]:
    """An actor a node, the small ones aside, with its CPUs and the whole model."""
    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    large = [cpus for cpus in nodes if cpus >= 1 and cpus >= max(nodes) / 2]
    if not large:
        raise UserError("no node of this Ray has a CPU to predict on")
    actors, threads = min(len(large), len(chunks)), min(large)
    booked = 0.75 * threads  # no two fit on a node, yet something small may run beside
    for rows in stream_through_actors(chunks, partial(_make_actor, question, threads), actors, booked):
        if isinstance(rows, str):
            raise UserError(rows)
        yield rows


def _make_actor(question: Question, threads: int) -> Callable[[Chunk], list[dict[str, Any]] | str]:
    torch.set_num_threads(threads)
    model = load(question.run, question.overrides)

    def answer(chunk: Chunk) -> list[dict[str, Any]] | str:
        try:
            texts = [row.text for row in chunk.read()]
        except UserError as error:  # the driver tells it, without a traceback
            return str(error)
        return answers(texts, model.predict(texts, question.top_k, question.explain), chunk.first_row)

    return answer


def _by_workers(
    question: Question, config: Config, chunks: list[Chunk], scratch: Folder
) -> Iterator[list[dict[str, Any]]]:
    """Workers that share one model search together; chunks are dealt to them in turn."""
    if question.explain:
        raise UserError("--explain needs the whole model in one place; use inference.sharded=false")
    scratch.create()
    run_on_workers(partial(_predict_on_worker, question, chunks, scratch), scratch, "predict", config)
    for number in range(len(chunks)):
        yield json.loads(scratch.read(f"{number}.json"))


def _predict_on_worker(question: Question, chunks: list[Chunk], parts: Folder, worker: Worker) -> None:
    workers = worker.workers
    model = load(question.run, question.overrides, workers, worker.device)
    at_once = points_at_once(workers.size)
    mine, searches = dealt({str(number): chunk.num_rows for number, chunk in enumerate(chunks)}, worker)
    done, total = 0, sum(chunk.num_rows for chunk in chunks)
    for number in mine:
        chunk = chunks[int(number)]
        texts, found = [row.text for row in chunk.read()], []
        for start in range(0, len(texts), at_once):
            part = texts[start : start + at_once]
            filled = part + [""] * (at_once - len(part))
            found.extend(model.predict(filled, question.top_k)[: len(part)])
            searches -= 1
        parts.write(f"{number}.json", json.dumps(answers(texts, found, chunk.first_row)).encode())
        done += len(texts)
        worker.say(Bar("predict", min(total, done * workers.size), total, " texts"))
    for _ in range(searches):
        model.predict([""] * at_once, question.top_k)
    workers.gather_objects(None)


@contextmanager
def _writing(output: str | None) -> Iterator[Callable[[list[dict[str, Any]]], None]]:
    """A function that takes rows: to the screen, or to a file that is there once the body is through."""
    if output is None:
        yield lambda rows: print("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), flush=True)
        return
    folder = Folder.at(posixpath.dirname(output) or ".")
    path = posixpath.join(folder.path, posixpath.basename(output))
    beside, filesystem = f"{path}.partial", folder.filesystem
    try:
        folder.create()
        stream = filesystem.open_output_stream(beside)
    except OSError as error:
        raise UserError(f"--output {output} cannot be written: {error}") from None
    try:
        with stream:
            if output.endswith(".parquet"):
                with pq.ParquetWriter(stream, PARQUET, compression="zstd") as writer:
                    waiting: list[dict[str, Any]] = []  # rows of a row group

                    def write(rows: list[dict[str, Any]]) -> None:
                        waiting.extend(rows)
                        if len(waiting) >= ROWS_PER_CHUNK:
                            writer.write_table(_as_table(waiting))
                            waiting.clear()

                    yield write
                    if waiting:
                        writer.write_table(_as_table(waiting))
            else:
                yield lambda rows: stream.write(
                    "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
                )
    except BaseException:
        with suppress(OSError):
            filesystem.delete_file(beside)
        raise
    filesystem.move(beside, path)


def _as_table(rows: list[dict[str, Any]]) -> pa.Table:
    explained = any("paths" in label for row in rows for label in row["labels"])
    return pa.table(
        {
            "row": [row["row"] for row in rows],
            "text": [row["text"] for row in rows],
            "labels": [[label["label"] for label in row["labels"]] for row in rows],
            "scores": [[label["score"] for label in row["labels"]] for row in rows],
            "explanation": [json.dumps(row["labels"]) if explained else None for row in rows],
        },
        schema=PARQUET,
    )
