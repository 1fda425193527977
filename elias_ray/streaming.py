"""Ray Data as this project uses it: a stream of items through one function, a task each, never all at once."""

import logging
import pickle
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

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
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = ordered
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)  # it warns that we show our own
    rows = [{"item": pickle.dumps(item)} for item in items]
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
        lambda row: {"result": pickle.dumps(work(pickle.loads(row["item"])))},
        num_cpus=cpus_per_task,
        concurrency=tasks_at_once,
    )
    for row in results.iter_rows():
        yield pickle.loads(row["result"])
