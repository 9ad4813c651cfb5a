import pytest

from pipeline.errors import UsageError
from trainer import config
from trainer.config import TrainConfig, parse

PATHS = ["--data_dir=D", "--model_dir=M"]


def test_flags_named_in_scripts_exist():
    flags = [
        *("data_dir", "model_dir", "model", "strategy", "num_replicas", "global_batch_size", "train_steps", "epochs"),
        *("steps_per_loop", "log_every", "checkpoint_every", "eval_every", "learning_rate", "optimizer", "distort"),
        *("on_corrupt", "max_corrupt", "resize", "log_keys"),
        *("streams", "shuffle_bytes", "remainder", "prefetch", "max_to_keep", "seed", "deterministic"),
    ]
    assert set(flags) <= set(TrainConfig.__dataclass_fields__)


def test_defaults_are_those_of_the_named_model():
    tutorial = parse([*PATHS, "--model=cifar10_cnn"])
    assert tutorial.global_batch_size == 128
    assert (tutorial.learning_rate, tutorial.decay_factor, tutorial.decay_epochs) == (0.1, 0.1, 350.0)
    assert (tutorial.optimizer, tutorial.distort) == ("sgd", "cifar10_tutorial")
    book = parse(PATHS)
    assert (book.model, book.global_batch_size, book.decay_factor, book.distort) == ("mlp", 100, 0.99, "none")


def test_flags_override_the_models_defaults():
    changed = parse([*PATHS, "--model", "cifar10_cnn", "--global_batch_size=256", "--distort=none"])
    assert (changed.global_batch_size, changed.distort, changed.learning_rate) == (256, "none", 0.1)


def test_every_model_has_epochs():
    assert config.DEFAULT_EPOCHS.keys() == config.MODEL_DEFAULTS.keys()


@pytest.mark.parametrize(
    ("flags", "last_step"),
    [([], 20 * 15), (["--epochs=3"], 45), (["--train_steps=7"], 7)],
)
def test_last_step(flags, last_step):
    assert parse([*PATHS, *flags]).last_step(steps_per_epoch=15) == last_step


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model=lennet"], ["--model", "'lennet'", "did you mean 'lenet'"]),
        (["--strategy=mirored"], ["--strategy", "did you mean 'mirrored'"]),
        (["--optimizer=adm"], ["--optimizer", "did you mean 'adam'"]),
        (["--remainder=pat"], ["--remainder", "did you mean 'pad'"]),
        (["--batch_size=3"], ["flag", "--batch_size", "--global_batch_size"]),
        (["--train_steps=5", "--epochs=2"], ["--train_steps=5", "--epochs=2", "one of them"]),
        (["--strategy=multiworker", "--num_replicas=2"], ["--num_replicas=2", "multiworker", "TF_CONFIG"]),
        (["--num_replicas=2"], ["--num_replicas=2", "one_device", "mirrored"]),
        (["--train_steps=0"], ["--train_steps=0", "1 or more"]),
        (["--steps_per_loop=0"], ["--steps_per_loop=0", "1 or more"]),
        (["--on_corrupt=skp"], ["--on_corrupt", "'skp'", "did you mean 'skip'"]),
        (["--max_corrupt=-1"], ["--max_corrupt=-1", "0 or more"]),
        (["--resize=32"], ["--resize='32'", "such as 224x224"]),
        (["--resize=0x32"], ["--resize='0x32'"]),
        (["--seed=-1"], ["--seed=-1", "0 or more"]),
        (["--learning_rate=nan"], ["--learning_rate=nan"]),
        (["--learning_rate=0"], ["--learning_rate=0.0", "above 0"]),
        (["--momentum=1"], ["--momentum=1.0", "less than 1"]),
        (["--streams=3"], ["streams=3", "global_batch_size=100", "2 and 4"]),
        (["--epochs=many"], ["--epochs", "many"]),
        (["extra"], ["extra"]),
    ],
)
def test_bad_values_name_the_flag_the_value_and_the_bound(flags, words):
    with pytest.raises(UsageError) as caught:
        parse([*PATHS, *flags])
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_paths_are_required():
    with pytest.raises(UsageError, match="--model_dir"):
        parse(["--data_dir=D"])


def test_one_replica_on_one_device_is_fine():
    assert parse([*PATHS, "--num_replicas=1"]).num_replicas == 1


def test_a_corrupt_record_is_an_error_unless_it_may_be_skipped():
    assert (parse(PATHS).on_corrupt, parse(PATHS).max_corrupt, parse(PATHS).log_keys) == ("raise", 100, None)
