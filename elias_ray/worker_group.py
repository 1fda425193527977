"""A group of training workers on Ray Train, and what one of them has in hand.

Ray Train starts the processes and joins them in a process group (nccl where every worker has a GPU, else gloo); a
function then runs on all of them at once. What the user should see goes to the driver through a queue, so that a bar
on the screen stays one bar.
"""

import logging
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil
import ray
import torch
from ray.exceptions import RayActorError
from ray.util.queue import Empty, Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tqdm import tqdm

from elias_ray.artifacts import Folder
from elias_ray.config import Config, Resources
from elias_ray.errors import UserError
from elias_ray.workers import Workers

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer


@dataclass(frozen=True)
class Bar:
    """How far something long has come."""

    description: str
    done: int
    total: int
    unit: str
    remark: str = ""
    step: int = 0  # of a stage, in training


@dataclass(frozen=True)
class Report:
    """What an epoch has reached."""

    figures: dict[str, float]


@dataclass(frozen=True)
class Worker:
    """What the function gets."""

    workers: Workers
    device: torch.device
    local_size: int  # workers on this node
    messages: Queue
    reached: int = 0  # steps of the stage that were done before its workers were lost, as far as the user saw
    told: list[float] = field(default_factory=lambda: [0.0])  # when the last bar was shown

    @property
    def first(self) -> bool:
        return self.workers.rank == 0

    def say(self, message: str | Bar | Report) -> None:
        """To the user, from the first worker alone; bars no more than twice a second."""
        if not self.first:
            return
        if isinstance(message, Bar):
            if message.done < message.total and time.monotonic() - self.told[0] < 0.5:
                return
            self.told[0] = time.monotonic()
        with suppress(RayActorError):  # nobody listens any more, which is no reason to stop
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


def run_on_workers(
    function: Callable[[Worker], None],
    run: Folder,
    title: str,
    config: Config,
    report: Callable[[dict[str, float]], None] | None = None,
) -> None:
    """`function` on all workers; once more if some are lost. A UserError of any worker is raised here.

    `report` is called with what they say of each epoch, and all of it before this returns.
    """
    from ray.train import TrainingFailedError

    resources, failures, reached = config.resources, 0, 0
    booking = _booking(resources)  # by what the cluster has before it loses any of it
    with _showing_messages(report) as screen:
        while True:
            try:
                with _own_interrupts():
                    _trainer(function, run / "ray_train", title, screen, booking, config).fit()
                return
            except (TrainingFailedError, RayActorError) as error:
                causes = [*getattr(error, "worker_failures", {}).values(), error.__cause__ or error]
                for cause in causes:
                    found = _user_error_in(cause)
                    if found is not None:
                        raise found from None
                # With progress in between they do not add up.
                failures = 1 if screen.reached > reached else failures + 1
                reached = screen.reached
                if failures > resources.failures:
                    raise
                with suppress(RayActorError):
                    screen.messages.put(
                        f"{title}: its workers were lost ({_last_line(causes[0])}); "
                        f"starting them again, {failures} of {resources.failures} times"
                    )
            finally:
                (run / "ray_train").delete()


def _booking(resources: Resources) -> dict[str, float]:
    """What Ray sets aside for a worker."""
    available, least = ray.cluster_resources(), resources.fewest_workers
    use_gpu = resources.use_gpu if resources.use_gpu is not None else available.get("GPU", 0) >= least
    # A worker computes with the threads of its share of the machine, whatever Ray books for it; Ray Data needs some.
    workers_at_once = resources.workers * (resources.models_at_once or 1)
    cpus = resources.worker_cpus or min(1.0, max(0.01, round(0.5 * available.get("CPU", 0) / workers_at_once, 2)))
    return {"CPU": cpus, "GPU": 1} if use_gpu else {"CPU": cpus}


def _trainer(
    function: Callable[[Worker], None],
    storage: Folder,
    title: str,
    screen: "Screen",
    booking: dict[str, float],
    config: Config,
) -> "TorchTrainer":
    """`storage` is for Ray Train's own notes on the run; ours are the artifacts."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    resources, use_gpu = config.resources, "GPU" in booking
    least, hung_after = resources.fewest_workers, resources.hung_after
    # One that hangs in a computation is missed by the others, in their exchanges or in Ray's; one that stands still by
    # Ray Train.
    for timeout in ("WORKER_HEALTH_CHECK", "COLLECTIVE"):
        os.environ[f"RAY_TRAIN_{timeout}_TIMEOUT_S"] = str(hung_after)
    return TorchTrainer(
        _on_worker,
        train_loop_config={"function": function, "messages": screen.messages, "reached": screen.reached},
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo", timeout_s=hung_after),
        scaling_config=ScalingConfig(
            # Ray Train ends workers without notice when it takes more: not more often than there are checkpoints.
            elastic_resize_monitor_interval_s=max(30.0, 60 * config.checkpoints.minutes),
            num_workers=resources.workers if least == resources.workers else (least, resources.workers),
            use_gpu=use_gpu,
            resources_per_worker=booking,
            placement_strategy="PACK" if use_gpu else "SPREAD",  # without GPUs a worker takes all threads it finds
        ),
        run_config=RunConfig(
            name=re.sub(r"\W+", "_", title),
            storage_path=storage.path,
            storage_filesystem=storage.filesystem,
        ),
    )


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
    # Numbers below 1e-38 count as 0, before there are threads, which inherit it. An encoder may leave a dimension
    # unused, at 1e-33 in the default one; products of that with small gradients take an Intel CPU ten times as long.
    torch.set_flush_denormal(True)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_size))  # Ray has set it to 1
    workers = Workers(context.get_world_rank(), context.get_world_size())
    messages, reached = loop_config["messages"], loop_config["reached"]
    loop_config["function"](Worker(workers, get_device(), local_size, messages, reached))


@contextmanager
def _own_interrupts() -> Iterator[None]:
    """Ray Train takes Ctrl-C for itself and does not give it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@dataclass
class Screen:
    messages: Queue  # that are shown
    report: Callable[[dict[str, float]], None] | None  # what becomes of the figures of an epoch
    reached: int = 0  # the last step that was


@contextmanager
def _showing_messages(report: Callable[[dict[str, float]], None] | None) -> Iterator[Screen]:
    """What is put into its queue is shown on this screen until the body is through."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)  # not to be lost
    screen = Screen(Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here}), report)
    thread = threading.Thread(target=_show, args=(screen,), daemon=True)
    thread.start()
    try:
        yield screen
    finally:
        with suppress(RayActorError):
            screen.messages.put(None)
            thread.join(timeout=30 if report is None else None)
            screen.messages.shutdown()


def _show(screen: Screen) -> None:
    bar: tqdm | None = None
    shown = ""  # what the bar is about
    while True:
        try:
            message = screen.messages.get(timeout=60)
        except Empty:
            continue
        except Exception:  # the queue is gone, and with it everybody who could say something
            break
        if isinstance(message, Report):
            if screen.report is not None:
                screen.report(message.figures)
            continue
        if isinstance(message, Bar):
            screen.reached = message.step or screen.reached
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


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _user_error_in(error: BaseException | None) -> UserError | None:
    """The UserError that a remote error was made from."""
    while error is not None:
        if isinstance(error, UserError):
            return UserError(str(error))
        cause = getattr(error, "cause", None) or error.__cause__
        error = cause if cause is not error else None
    return None
