"""A group of training workers on Ray Train, and what one of them has in hand.

Ray Train starts the processes and joins them in a process group (nccl where every worker has a GPU, else gloo); a
function then runs on all of them at once. What the user should see goes to the driver through a queue, so that a bar
on the screen stays one bar.
"""

import logging
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
import ray
import torch
from ray.util.queue import Empty, Queue
from tqdm import tqdm

from elias_ray.artifacts import Folder
from elias_ray.config import Resources
from elias_ray.errors import UserError
from elias_ray.workers import Workers


@dataclass(frozen=True)
class Bar:
    """How far something long has come."""

    description: str
    done: int
    total: int
    unit: str
    remark: str = ""


@dataclass(frozen=True)
class Worker:
    """What the function gets."""

    workers: Workers
    device: torch.device
    local_size: int  # workers on this node
    messages: Queue
    told: list[float] = field(default_factory=lambda: [0.0])  # when the last bar was shown

    @property
    def first(self) -> bool:
        return self.workers.rank == 0

    def say(self, message: str | Bar) -> None:
        """To the user, from the first worker alone; bars no more than twice a second."""
        if not self.first:
            return
        if isinstance(message, Bar):
            if message.done < message.total and time.monotonic() - self.told[0] < 0.5:
                return
            self.told[0] = time.monotonic()
        self.messages.put(message)

    @property
    def memory(self) -> int:
        """Bytes that this worker may use: of its GPU, or its part of the machine."""
        if self.device.type == "cuda":
            return int(torch.cuda.get_device_properties(self.device).total_memory)
        return machine_memory() // self.local_size

    @property
    def peak_memory(self) -> int:
        """Bytes that this worker has used at most, there."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_on_workers(function: Callable[[Worker], None], run: Folder, name: str, resources: Resources) -> None:
    """`function` on all workers. A UserError of any worker is raised here."""
    from ray.train import RunConfig, ScalingConfig, TrainingFailedError
    from ray.train.torch import TorchConfig, TorchTrainer

    available = ray.cluster_resources()
    use_gpu = available.get("GPU", 0) >= resources.workers
    # A worker computes with the threads of its share of the machine, whatever Ray books for it; Ray Data needs some.
    workers_at_once = resources.workers * (resources.members_at_once or 1)
    cpus = min(1.0, max(0.01, round(0.5 * available.get("CPU", 0) / workers_at_once, 2)))
    storage = run / "ray_train"  # Ray Train's own notes on the run; ours are the artifacts
    storage.delete()
    with _showing_messages() as messages:
        trainer = TorchTrainer(
            _on_worker,
            train_loop_config={"function": function, "messages": messages},
            torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=resources.workers,
                use_gpu=use_gpu,
                resources_per_worker={"CPU": cpus} | ({"GPU": 1} if use_gpu else {}),
                placement_strategy="PACK" if use_gpu else "SPREAD",  # without GPUs a worker takes all threads it finds
            ),
            run_config=RunConfig(name=name, storage_path=storage.path, storage_filesystem=storage.filesystem),
        )
        try:
            trainer.fit()
        except TrainingFailedError as error:
            for cause in [*getattr(error, "worker_failures", {}).values(), error.__cause__]:
                found = _user_error_in(cause)
                if found is not None:
                    raise found from None
            raise
        finally:
            storage.delete()


def machine_memory() -> int:
    """Bytes of this machine, or of the container that this process is confined to, less Ray's object store."""
    total = int(psutil.virtual_memory().total)
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(limit) as file:
            total = min(total, int(file.read()))
    here = ray.get_runtime_context().get_node_id()
    stores = [node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["NodeID"] == here]
    return total - int(sum(stores))


def _on_worker(loop_config: dict[str, Any]) -> None:
    import ray.train
    from ray.train.torch import get_device

    for name in ("deepspeed", "DeepSpeed", "ray.data", "transformers"):
        logging.getLogger(name).setLevel(logging.WARNING)
    context = ray.train.get_context()
    local_size = context.get_local_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))  # Ray has set it to 1
    workers = Workers(context.get_world_rank(), context.get_world_size())
    loop_config["function"](Worker(workers, get_device(), local_size, loop_config["messages"]))


@contextmanager
def _showing_messages() -> Iterator[Queue]:
    """A queue whose messages are shown on this screen until the body is through."""
    messages = Queue(actor_options={"num_cpus": 0})
    thread = threading.Thread(target=_show, args=(messages,), daemon=True)
    thread.start()
    try:
        yield messages
    finally:
        messages.put(None)
        thread.join(timeout=30)
        messages.shutdown()


def _show(messages: Queue) -> None:
    bar: tqdm | None = None
    shown = ""  # what the bar is about
    while True:
        try:
            message = messages.get(timeout=60)
        except Empty:
            continue
        except Exception:  # the queue is gone, and with it everybody who could say something
            break
        if isinstance(message, Bar):
            if bar is not None and shown != message.description:
                bar.close()
                bar = None
            if bar is None:
                shown = message.description
                bar = tqdm(total=message.total, desc=shown, unit=message.unit, mininterval=0, initial=message.done)
            bar.set_postfix_str(message.remark, refresh=False)
            bar.update(message.done - bar.n)
            continue
        if bar is not None:
            bar.close()
            bar = None
        if message is None:
            break
        print(message, flush=True)


def _user_error_in(error: BaseException | None) -> UserError | None:
    """The UserError that a remote error was made from."""
    while error is not None:
        if isinstance(error, UserError):
            return UserError(str(error))
        cause = getattr(error, "cause", None) or error.__cause__
        error = cause if cause is not error else None
    return None
