"""The mean of weights over steps."""

import torch

from elias_ray.averaging import Average


def test_the_mean_of_what_was_added() -> None:
    weight, bias = torch.zeros(2, 3), torch.zeros(3)
    average = Average({"weight": weight, "bias": bias})
    values = [torch.full((2, 3), float(n)) for n in (1, 5, 9, 17)]
    for value in values:
        weight.copy_(value)
        bias.sub_(2)
        average.add()
    average.use()
    assert torch.allclose(weight, torch.full((2, 3), 8.0))
    assert torch.allclose(bias, torch.full((3,), -5.0))


def test_nothing_added_changes_nothing() -> None:
    weight = torch.ones(2)
    Average({"weight": weight}).use()
    assert weight.tolist() == [1, 1]
