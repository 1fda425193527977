"""The memory plan: what grows with what."""

from dataclasses import replace

from elias_ray.memory import FLOAT, Shapes, of_a_checkpoint, plan, sent, show

AMAZON_3M = Shapes(
    workers=1,
    batch_size=64,
    tokens=128,
    rows_ahead=131_072,
    encoder_parameters=110_000_000,
    encoder_layers=12,
    encoder_heads=12,
    encoder_width=3072,
    embedding_size=768,
    clusters=32_768,
    labels=2_812_281,
    row_length=1000,
    beam=20,
    explored=25,
    shortlist=2000,
    learns_adjacency=True,
    trains_encoder=True,
    averages=False,
    zero_stage=0,
)


def test_tables_of_amazon_3m() -> None:
    lines = plan(AMAZON_3M)
    assert lines["W_L, its rows here"] == FLOAT * 2_812_281 * 769  # 8.6 GB, and three times that for training
    assert lines["gradient and AdamW of W_L"] == 3 * lines["W_L, its rows here"]
    assert lines["A, labels and weights, its rows here"] == 8 * 32_768_000


def test_tables_are_shared_and_the_rest_is_not() -> None:
    one, eight = plan(AMAZON_3M), plan(replace(AMAZON_3M, workers=8))
    for table in ("W_C", "W_L", "A"):
        name = f"gradient and AdamW of {table}"
        assert one[name] / 8 <= eight[name] < one[name] / 8 * 1.001
    assert eight["W_C, its rows here"] == one["W_C, its rows here"] // 8
    assert eight["AdamW of phi"] == one["AdamW of phi"]
    sharded = plan(replace(AMAZON_3M, workers=8, zero_stage=2))
    assert sharded["AdamW of phi"] == 3 * one["AdamW of phi"] // 2 // 8  # and a copy of the weights
    assert sharded["gradients of phi"] == one["gradients of phi"] // 8


def test_what_is_sent_grows_with_neither_labels_nor_clusters() -> None:
    few = replace(AMAZON_3M, workers=8, labels=30_000, clusters=512)
    assert sent(few, positives=36) == sent(replace(AMAZON_3M, workers=8), positives=36)


def test_what_is_not_there_is_not_listed() -> None:
    lines = plan(replace(AMAZON_3M, learns_adjacency=False, trains_encoder=False))
    assert "gradient and AdamW of A" not in lines
    assert "activations of phi" not in lines
    assert "averages of the weights" not in lines
    assert plan(replace(AMAZON_3M, averages=True))["averages of the weights"] > lines["W_L, its rows here"]


def test_shown_with_what_there_is() -> None:
    text = show({"W_L": 3 * 2**30, "A": 2**29}, available=8 * 2**30)
    assert text.splitlines()[-1].split() == ["in", "all,", "of", "8.0", "GiB", "3.500", "GiB"]


def test_bfloat16_takes_an_eighth() -> None:
    fine, coarse = plan(AMAZON_3M), plan(replace(AMAZON_3M, label_bytes=2))
    tables = ("W_L, its rows here", "gradient and AdamW of W_L")
    assert coarse[tables[0]] == 2_812_281 * (2 * 768 + 4)
    assert 7.5 < sum(fine[name] for name in tables) / sum(coarse[name] for name in tables) < 8
    assert of_a_checkpoint(replace(AMAZON_3M, label_bytes=2))[1] < of_a_checkpoint(AMAZON_3M)[1] / 3
    waiting = "gradients of W_L that wait"
    assert waiting not in fine
    assert plan(replace(AMAZON_3M, label_bytes=2, update_every=10))[waiting] == 10 * coarse[waiting]


def test_labels_drawn_at_random_are_shared_and_no_more_than_there_are() -> None:
    drawn = "labels drawn at random"
    assert drawn not in plan(AMAZON_3M)
    one, eight = (plan(replace(AMAZON_3M, workers=size, random_labels=8192))[drawn] for size in (1, 8))
    assert one == 8 * eight > FLOAT * 8192 * 768
    few = replace(AMAZON_3M, labels=1000, random_labels=8192)
    assert plan(few)[drawn] == plan(replace(few, random_labels=1000))[drawn]
