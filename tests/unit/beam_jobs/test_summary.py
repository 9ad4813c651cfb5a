from beam_jobs.summary import summary
from pipeline.manifest import Feature, Manifest, ShardInfo, SplitInfo


def made(shape):
    shard = ShardInfo("train-00000-of-00001.tfrecord", 1500, 3 << 20, "00000000", None)
    splits = {"test": SplitInfo((), ()), "train": SplitInfo((shard,), (1500,))}
    return Manifest("mine", ("a",), {"image": Feature("uint8", shape, "raw")}, splits, (0.0,), (1.0,), (), {})


def test_it_says_what_where_how_fast_and_what_next():
    text = summary(made((28, 28, 1)), "my data", 0.5, 3.0)
    assert text.splitlines() == [
        "mine is in my data:",
        "  train: 1500 examples, 1 shards, 3.0 MiB",
        "  test: 0 examples, 0 shards, 0.0 MiB",
        "  0.5 s, 3,000 examples/s (3.0 s with start-up and checks)",
        "look at it:  python -m pipeline.inspect 'my data'",
        "train on it: python -m trainer.run --data_dir='my data' --model_dir='my data-run' --model=lenet "
        "--strategy=mirrored",
    ]


def test_colour_images_go_to_the_cifar_network():
    assert "--model=cifar10_cnn" in summary(made((32, 32, 3)), "out", 1.0, 1.0)
