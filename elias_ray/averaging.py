"""The mean of weights over the later steps of training, which often generalises better than the last of them."""

import torch
from torch import Tensor


class Average:
    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors, self.count = tensors, 0
        self.means = [torch.zeros_like(tensor) for tensor in tensors]

    def add(self) -> None:
        """The tensors as they are now."""
        self.count += 1
        for mean, tensor in zip(self.means, self.tensors, strict=True):
            mean.lerp_(tensor.detach(), 1 / self.count)

    def restore(self, count: int, means: list[Tensor]) -> None:
        """Go on with the means of so many."""
        self.count, self.means = count, means

    def use(self) -> None:
        """Make the tensors their means; nothing happens if none was added."""
        if self.count:
            with torch.no_grad():
                for mean, tensor in zip(self.means, self.tensors, strict=True):
                    tensor.copy_(mean)
