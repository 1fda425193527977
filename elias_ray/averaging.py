"""The mean of weights over the later steps of training, which often generalises better than the last of them."""

import torch
from torch import Tensor


class Average:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors, self.count = tensors, 0
        self.means = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in tensors.items()}

    def add(self) -> None:
        """The tensors as they are now."""
        self.count += 1
        for name, mean in self.means.items():
            mean.lerp_(self.tensors[name].detach(), 1 / self.count)

    def restore(self, count: int, means: dict[str, Tensor]) -> None:
        """Go on with the means of so many."""
        self.count, self.means = count, means

    def use(self) -> None:
        """Make the tensors their means; nothing happens if none was added."""
        if self.count:
            with torch.no_grad():
                for name, mean in self.means.items():
                    self.tensors[name].copy_(mean)
