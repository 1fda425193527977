"""Ray Data as this project uses it: a stream of items through one function, a task each, never all at once."""

import logging
import pickle
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import ray.data

Item = TypeVar("Item")
Result = TypeVar("Result")


def stream(
    items: Sequence[Item],
    work: Callable[[Item], Result],
    ordered: bool = False,
    cpus_per_task: float = 1,
    tasks_at_once: int | None = None,
) -> Generator[Result, None, None]:
    """Results as they are ready, in any order unless `ordered`. Items and results may be any that pickle."""
    rows = _as_rows(items, ordered).map(
        lambda row: {"result": pickle.dumps(work(pickle.loads(row["item"])))},
        num_cpus=cpus_per_task,
        concurrency=tasks_at_once,
    )
    yield from _results(rows)


def stream_through_actors(
    items: Sequence[Item], make_work: Callable[[], Callable[[Item], Result]], actors: int, cpus_per_actor: float
) -> Generator[Result, None, None]:
    """Results in the order of the items, from actors that each make once what they work with."""
    rows = _as_rows(items, ordered=True).map(
        _Actor,
        fn_constructor_args=(make_work,),
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=cpus_per_actor,
    )
    yield from _results(rows)


class _Actor:
    def __init__(self, make_work: Callable[[], Callable[[Any], Any]]) -> None:
        self.work = make_work()

    def __call__(self, row: dict[str, bytes]) -> dict[str, bytes]:
        return {"result": pickle.dumps(self.work(pickle.loads(row["item"])))}


def _as_rows(items: Sequence[Any], ordered: bool) -> ray.data.Dataset:
    """A block each."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = ordered
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns that we show our own
    rows = [{"item": pickle.dumps(item)} for item in items]
    return ray.data.from_items(rows, override_num_blocks=len(rows))


def _results(rows: ray.data.Dataset) -> Iterator[Any]:
    for row in rows.iter_rows():
        yield pickle.loads(row["result"])
