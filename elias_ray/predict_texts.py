"""New texts, from a file of any size or from standard input, to label names: as JSON lines or Parquet.

A file goes through in chunks, on actors that hold the whole model (Ray Data), or on workers that share one
(inference.sharded). Its rows come out in their order. The output is there whole or not at all.
"""

import json
import posixpath
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from elias_ray.config import Config
from elias_ray.errors import UserError
from elias_ray.formats.source import Chunk
from elias_ray.formats.texts import text_chunks
from elias_ray.memory import POINTS_AT_ONCE
from elias_ray.predictor import Prediction, load
from elias_ray.streaming import stream_through_actors
from elias_ray.worker_group import Bar, Worker, run_on_workers

ROWS_PER_CHUNK = 1024
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
    with tempfile.TemporaryDirectory() as scratch, _writing(output) as write:
        chunks = text_chunks(source, text_column, Folder.at(scratch), ROWS_PER_CHUNK)
        connect_to_ray()
        through = _by_workers if config.inference.sharded else _by_actors
        bar = tqdm(total=sum(chunk.num_rows for chunk in chunks), desc="predict", unit=" texts", disable=None)
        with bar:
            for rows in through(question, config, chunks):
                write(rows)
                bar.update(len(rows))


def _by_actors(question: Question, config: Config, chunks: list[Chunk]) -> Iterator[list[dict[str, Any]]]:
    """An actor a node, with all its CPUs and the whole model."""
    nodes = [int(cpus) for node in ray.nodes() if node["Alive"] and (cpus := node["Resources"].get("CPU", 0)) >= 1]
    if not nodes:
        raise UserError("no node of this Ray has a CPU to predict on")
    actors, cpus = min(len(nodes), len(chunks)), min(nodes)
    for rows in stream_through_actors(chunks, partial(_make_actor, question, cpus), actors, cpus):
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


def _by_workers(question: Question, config: Config, chunks: list[Chunk]) -> Iterator[list[dict[str, Any]]]:
    """Workers that share one model search together; chunks are dealt to them in turn."""
    if question.explain:
        raise UserError("--explain needs the whole model in one place; use inference.sharded=false")
    run = Folder.at(question.run)
    parts = run / "predicting"
    parts.delete()
    parts.create()
    try:
        run_on_workers(partial(_predict_on_worker, question, chunks, parts), run, "predict", config.resources)
        for number in range(len(chunks)):
            yield json.loads(parts.read(f"{number}.json"))
    finally:
        parts.delete()


def _predict_on_worker(question: Question, chunks: list[Chunk], parts: Folder, worker: Worker) -> None:
    workers = worker.workers
    model = load(question.run, question.overrides, workers)
    at_once = max(1, POINTS_AT_ONCE // workers.size)
    dealt = [workers.in_turn(list(enumerate(chunks)), rank) for rank in range(workers.size)]
    searches = max(sum(-(-chunk.num_rows // at_once) for _, chunk in mine) for mine in dealt)
    done, total = 0, sum(chunk.num_rows for chunk in chunks)
    for number, chunk in dealt[workers.rank]:
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
    folder.create()
    beside, filesystem = f"{path}.partial", folder.filesystem
    try:
        with filesystem.open_output_stream(beside) as stream:
            if output.endswith(".parquet"):
                with pq.ParquetWriter(stream, PARQUET, compression="zstd") as writer:
                    yield lambda rows: writer.write_table(_as_table(rows))
            else:
                yield lambda rows: stream.write(
                    "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
                )
    except BaseException:
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
