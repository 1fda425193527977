"""The workers of a training run as the sharded tables see them: who owns which rows, and the ways they talk.

Every worker calls the same methods in the same order; a single one (`alone()`) takes the same path and sends nothing.
Rows are owned in contiguous blocks, the first ones a row longer where they do not divide evenly.

Legend: B points of a worker, G points of all workers, W workers, D and N values of a point.
"""

from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Item = TypeVar("Item")


@dataclass
class Workers:
    rank: int
    size: int
    group: dist.ProcessGroup | None = None  # None: the default group, or nobody else
    bytes_sent: int = field(default=0, compare=False)  # by this worker to others, since it was last set to 0

    def block(self, num_rows: int, rank: int | None = None) -> range:
        """The rows that a worker (by default this one) owns."""
        rank = self.rank if rank is None else rank
        length, longer = divmod(num_rows, self.size)
        start = rank * length + min(rank, longer)
        return range(start, start + length + (rank < longer))

    def in_turn(self, items: list[Item], rank: int | None = None) -> list[Item]:
        """The items of a worker (by default this one) where they are dealt one by one."""
        return items[self.rank if rank is None else rank :: self.size]

    def owner_of(self, rows: Tensor, num_rows: int) -> Tensor:
        """The worker that owns each row."""
        ends = torch.tensor([self.block(num_rows, rank).stop for rank in range(self.size)], device=rows.device)
        return torch.searchsorted(ends, rows, right=True)

    def gather(self, tensor: Tensor) -> Tensor:
        """Everybody's tensor, one after the other along the first axis; all have one shape."""
        if self.size == 1:
            return tensor
        self.bytes_sent += (self.size - 1) * tensor.numel() * tensor.element_size()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts)

    def gather_with_gradient(self, points_BD: Tensor) -> Tensor:
        """The same, where the gradient of a point is the sum of what all workers have found of it."""
        gathered_GD: Tensor = _Gathered.apply(points_BD, self)  # type: ignore[no-untyped-call]
        return gathered_GD

    def gather_objects(self, item: Item) -> list[Item]:
        """Everybody's item, in their order; for small things."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item, group=self.group)
        return items

    def deal(self, tensor: Tensor) -> Tensor:
        """The i-th of `size` equal parts goes to worker i; what came from each, in their order: same shape."""
        return self.exchange(tensor, *[[len(tensor) // self.size] * self.size] * 2)

    def home(self, answers_GN: Tensor) -> Tensor:
        """Answers about everybody's points to where those are at home: (G, N) -> (B, W, N), by who answers."""
        num_points, width = answers_GN.shape
        return self.deal(answers_GN).view(self.size, num_points // self.size, width).transpose(0, 1)

    def exchange(self, tensor: Tensor, send_counts: list[int], receive_counts: list[int]) -> Tensor:
        """The first `send_counts[0]` entries go to worker 0, the next to worker 1, ...; received in the same way."""
        if self.size == 1:
            return tensor
        kept = send_counts[self.rank]
        self.bytes_sent += (len(tensor) - kept) * (tensor[:1].numel() if len(tensor) else 0) * tensor.element_size()
        received = tensor.new_empty((sum(receive_counts), *tensor.shape[1:]))
        dist.all_to_all_single(received, tensor.contiguous(), receive_counts, send_counts, group=self.group)
        return received


def alone() -> Workers:
    return Workers(rank=0, size=1)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points_BD: Tensor, workers: Workers) -> Tensor:
        ctx.workers = workers
        return workers.gather(points_BD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.workers.home(grads[0]).sum(dim=1), None


@dataclass(frozen=True)
class Route:
    """How the places of a (B, K) tensor of row numbers get to the owners of the rows, and back."""

    workers: Workers
    owners: Tensor  # (B * K,), of each place
    order: Tensor  # (B * K,), places sorted by owner; within an owner in their own order
    send_counts: list[int]
    receive_counts: list[int]

    @classmethod
    def to_owners(cls, workers: Workers, rows: Tensor, num_rows: int) -> "Route":
        if workers.size == 1:  # all are its own, in the order that they are in
            order = torch.arange(rows.numel(), device=rows.device)
            return cls(workers, torch.zeros_like(order), order, [rows.numel()], [rows.numel()])
        owners = workers.owner_of(rows.flatten(), num_rows)
        counts = owners.bincount(minlength=workers.size)
        # Numbers of a byte or two are sorted in a pass for each, which of long ones would be eight.
        order = owners.to(torch.uint8 if workers.size <= 256 else torch.int16).argsort(stable=True)
        return cls(workers, owners, order, counts.tolist(), workers.deal(counts).tolist())

    def send(self, values: Tensor) -> Tensor:
        """Flat values, a place each, to the owners of the places."""
        in_order = values.flatten().index_select(0, self.order)  # a third of the time of an index in brackets
        return self.workers.exchange(in_order, self.send_counts, self.receive_counts)

    def bring_back(self, answers: Tensor) -> Tensor:
        """Answers to what was sent, home and in the order of the places."""
        received = self.workers.exchange(answers, self.receive_counts, self.send_counts)
        return torch.empty_like(received).index_copy_(0, self.order, received)
