import dataclasses
import math
import re

import pytest

from pipeline.commands.flags import flags_of
from pipeline.errors import UsageError
from trainer import evaluate, export, launch
from trainer.config import TrainConfig, parse
from trainer.config.model import MODELS, OPTIMIZER_DEFAULTS, OPTIMIZERS, defaults_of

PATHS = ["--data_dir=D", "--model_dir=M"]
SYNC = {"strategy": "parameter_server", "sync": True}


def flat(config):
    return {name: value for group in dataclasses.asdict(config).values() for name, value in group.items()}


def test_flags_and_their_defaults_stay():
    """People's scripts name them."""
    assert flat(parse(PATHS)) == {
        **{"data_dir": "D", "train_split": "train", "eval_split": None, "resize": None, "augment": "none"},
        "augment_on": "auto",
        **{
            "on_corrupt": "raise",
            "max_corrupt": 100,
            "log_keys": None,
            "log_losses": None,
            "cache_dir": None,
            "cache_bytes": None,
        },
        **{"model_dir": "M", "strategy": "one_device", "num_replicas": None, "collective_timeout": 120.0},
        **{"join_timeout": 600.0, "all_reduce": "auto"},
        **{"model": "mlp", "optimizer": "momentum", "learning_rate": 0.05, "decay_factor": 0.99, "decay_epochs": 1.0},
        **{
            "momentum": 0.9,
            "seed": 0,
            "deterministic": False,
            "allow_order_change": False,
            "allow_model_change": False,
            "fresh": False,
        },
        **{"virtual_replicas": None, "cpu_threads": 8, "dropout": 0.0, "eval_flip": False},
        **{
            "task": None,
            "initialize_from": None,
            "label_smoothing": 0.0,
            "class_weight": None,
            "precision": "float32",
            "jit_compile": "auto",
        },
        **{
            "schedule": "exponential",
            "decay_staircase": True,
            "decay_at": "",
            "end_factor": 0.0,
            "warmup_epochs": 0.0,
            "weight_decay": 0.0,
        },
        **{"clip_norm": None, "ema": 0.99, "phases": ""},
        **{"summary_secs": 0.0, "checkpoint_secs": None, "keep_best": 0, "early_stopping": 0, "best_metric": None},
        **{
            "best_mode": "auto",
            "histogram_every": 0,
            "activation_every": 0,
            "log_time": None,
            "image_every": 0,
            "profile": None,
            "metrics_jsonl": None,
        },
        **{"headspace": 0, "log_device_placement": False},
        **{"global_batch_size": 100, "streams": None, "shuffle_bytes": 1 << 30, "remainder": "pad", "prefetch": 2},
        **{
            "eval_data_dir": None,
            "eval_copies": 1,
            "where": None,
            "limit": None,
            "classes": None,
            "balance": None,
            "weigh": None,
            "skip_steps": "",
            "mixture_schedule": "",
        },
        **{"eval_where": None, "eval_limit": None},
        **{"train_steps": None, "epochs": None, "steps_per_loop": 20, "max_to_keep": 5},
        "log_epochs": None,
        **{"log_every": 100, "summary_every": 100, "checkpoint_every": 1000, "eval_every": 0},
        **{"worker_hosts": None, "ps_hosts": None, "chief_host": None, "job_name": None, "task_index": None},
        **{"sync": False, "replicas_to_aggregate": None, "max_staleness": 0},
    }


@pytest.mark.parametrize("flags", [[], ["--global_batch_size=256", "--augment=none", "--deterministic"]])
def test_defaults_are_those_of_the_named_model(flags):
    config = parse([*PATHS, "--model", "cifar10_cnn", *flags])
    given = {"global_batch_size": 256, "augment": "none", "deterministic": True} if flags else {}
    expected = {"global_batch_size": 128, "augment": "cifar10_tutorial", "optimizer": "sgd"} | given
    expected |= {"learning_rate": 0.1, "decay_factor": 0.1, "decay_epochs": 350.0, "ema": 0.9999}
    assert flat(config) == flat(parse(PATHS)) | {"model": "cifar10_cnn"} | expected


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--model=lenet"], ("momentum", 0.01, 0.98, 0.0)),
        (["--model=lenet", "--optimizer=adam"], ("adam", 0.001, 0.98, 0.0)),
        (["--model=mlp", "--optimizer=adam(beta_2=0.95)"], ("adam(beta_2=0.95)", 0.001, 0.99, 0.0)),
        (["--optimizer=adam", "--learning_rate=0.5"], ("adam", 0.5, 0.99, 0.0)),
        (["--optimizer=adamw"], ("adamw", 0.001, 0.99, 0.004)),
        (["--model=mlp", "--optimizer=sgd"], ("sgd", 0.1, 0.99, 0.0)),
        (["--model=softmax_regression", "--optimizer=momentum"], ("momentum", 0.05, 0.99, 0.0)),
        (["--model=fast_cifar", "--optimizer=momentum"], ("momentum", 0.125, 0.99, 0.01)),
        (["--model=fast_cifar", "--optimizer=nesterov"], ("nesterov", 0.125, 0.99, 0.01)),
        (["--model=mine:model"], ("momentum", 0.01, 0.99, 0.0)),
        (["--model=mine:model", "--optimizer=lion"], ("lion", 0.0003, 0.99, 0.0)),
        (["--task=mine:Task"], ("momentum", 0.01, 0.99, 0.0)),
        (["--task=mine:Task", "--model=mlp"], ("momentum", 0.05, 0.99, 0.0)),
    ],
)
def test_defaults_are_those_of_the_pair_of_model_and_optimizer(flags, expected):
    keywords = dict(flag.removeprefix("--").split("=", 1) for flag in " ".join([*PATHS, *flags]).split())
    if "learning_rate" in keywords:
        keywords["learning_rate"] = float(keywords["learning_rate"])
    for config in (parse([*PATHS, *flags]), TrainConfig.of(**keywords)):
        found = config.optimizer
        assert (found.optimizer, found.learning_rate, found.decay_factor, found.weight_decay) == expected


def test_every_optimizer_has_a_rate_for_every_model():
    for name in OPTIMIZERS:
        others = [model for model, known in MODELS.items() if known.defaults.get("optimizer") != name]
        found = [defaults_of(model, name) for model in (*others, "mine:model")]
        if name not in ("sgd", "momentum", "nesterov"):
            rate = OPTIMIZER_DEFAULTS[name]["learning_rate"]
            assert {flags["learning_rate"] for flags in found} == {rate}
    assert OPTIMIZER_DEFAULTS.keys() == set(OPTIMIZERS) - {"momentum", "nesterov"}


def test_code_of_ones_own_has_the_general_defaults_beside_what_was_given():
    config = TrainConfig.of(data_dir="D", model_dir="M", epochs=3).with_code(model="mine:model")
    assert (config.model.model, config.steps.epochs, config.optimizer.learning_rate) == ("mine:model", 3, 0.01)
    given = TrainConfig.of(data_dir="D", model_dir="M", learning_rate=0.05).with_code(task="mine:Task")
    assert (given.model.task, given.optimizer.learning_rate) == ("mine:Task", 0.05)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--model=softmax_regression"], "sgd 0.5 constant"),
        (["--model=fast_cifar"], "nesterov 0.125 linear, warm-up 2 epochs, weight decay 0.01"),
        (["--optimizer=adam(beta_2=0.95)"], "adam(beta_2=0.95) 0.001 exponential, average of the weights 0.99"),
    ],
)
def test_an_optimizer_in_words(flags, text):
    assert str(parse([*PATHS, *flags]).optimizer) == text


def test_help_says_something_of_every_flag(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        parse(["--help=all"])
    said = dict(re.findall(r"^  --(\w+)(?: \[?\w+\]?|, --no\w+)?\s+(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert said.keys() - {"help"} == flat(parse(PATHS)).keys()
    assert [name for name, text in said.items() if text.startswith(("(default", "--")) or not text] == []
    assert said["epochs"].startswith("passes over the training split")


def test_help_shows_ten_flags_and_how_to_see_the_others(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = capsys.readouterr().out
    shown = re.findall(r"^  --(\w+)", said, re.MULTILINE)
    assert len(shown) == 10
    assert {"data_dir", "model_dir", "model", "global_batch_size", "epochs"} < {*shown}
    assert f"{len(flat(parse(PATHS))) - 10} more flags, by topic: python -m trainer.run --help=all" in said


def test_help_shows_the_defaults_of_the_named_model(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        parse(["--model=cifar10_cnn", "--help=all"])
    assert "(default of the model: 350.0)" in capsys.readouterr().out


def test_the_defaults_of_every_model_are_values_of_flags():
    for name in (*(name for name in MODELS if ":" not in name), "keras:VGG16"):
        assert parse([*PATHS, f"--model={name}"]).model.model == name


@pytest.mark.parametrize(("flags", "last_step"), [([], 20 * 15), (["--epochs=3"], 45), (["--train_steps=7"], 7)])
def test_last_step(flags, last_step):
    assert parse([*PATHS, *flags]).last_step(steps_per_epoch=15) == last_step


@pytest.mark.parametrize(
    ("flags", "facts"),
    [
        (["--model=lennet"], ["--model", "'lennet'", "'lenet'"]),
        (["--model_dir=gs://bucket/run"], ["--model_dir=gs://bucket/run: "]),
        (["--log_keys=s3://bucket/keys"], ["--log_keys=s3://bucket/keys: "]),
        (["--metrics_jsonl=hdfs://h/m"], ["--metrics_jsonl=hdfs://h/m: "]),
        (["--optimizer=adm"], ["--optimizer", "'adam'"]),
        (["--batch_size=3"], ["'--batch_size'", "'--global_batch_size'"]),
        (["--lr=3"], ["'--lr'", "'--learning_rate'"]),
        (["--max_steps=3"], ["'--train_steps'"]),
        (["--num_gpus=3"], ["'--num_replicas'"]),
        (["--random-seed=3"], ["'--seed'"]),
        (["--augment=shfit"], ["--augment: ", "'shfit'", "'shift'"]),
        (["--augment=shift(pixles=2) | flip"], ["--augment: ", "'pixles'", "'pixels'"]),
        (["--augment=normalize(pixels=2)"], ["--augment: normalize ", "'pixels'"]),
        (["--optimizer=adam(beta_1=0.9"], ["--optimizer: 'adam(beta_1=0.9' "]),
        (["--model_dir="], ["--model_dir: ", "folder"]),
        (["--metrics_jsonl="], ["--metrics_jsonl: ", "file"]),
        (["--train_steps=5", "--epochs=2"], ["--train_steps=5", "--epochs=2"]),
        (["--strategy=multiworker", "--num_replicas=2"], ["--num_replicas=2", "multiworker", "TF_CONFIG"]),
        (["--num_replicas=2"], ["--num_replicas=2", "one_device", "mirrored"]),
        (["--train_steps=1.5"], ["--train_steps", "'1.5'", "not a whole number"]),
        (["--resize=32x"], ["--resize='32x'", "224x224"]),
        (["--eval_every=5", "--eval_split=none"], ["--eval_every=5 with --eval_split=none", "--eval_every=0"]),
        (["--eval_every=5", "--eval_split="], ["--eval_every=5 with --eval_split=none"]),
        (["--best_metric=loss"], ["--best_metric=loss", "--keep_best", "--early_stopping", "leave it out"]),
        (["--best_mode=max"], ["--best_mode=max", "--keep_best", "--early_stopping", "leave it out"]),
        (["--histogram_every=5", "--summary_every=0"], ["--histogram_every=5 with --summary_every=0", "TensorBoard"]),
        (["--image_every=5", "--summary_every=0"], ["--image_every=5 with --summary_every=0", "TensorBoard"]),
        (["--schedule=piecewise"], ["--schedule=piecewise", "--decay_at"]),
        (["--decay_staircase=false", "--schedule=cosine"], ["--decay_staircase=false", "--schedule=cosine"]),
        (["--decay_at=3"], ["--schedule=exponential", "--decay_at"]),
        (["--schedule=piecewise", "--decay_at=3,2"], ["--decay_at=3,2", "ascend"]),
        (["--schedule=piecewise", "--decay_at=3;4"], ["--decay_at=3;4", "such as 91,136"]),
        (["--task=my_task"], ["--task=my_task", "my_module:MyTask"]),
        (["--dropout=0.5"], ["--dropout=0.5", "--model=mlp", "resnet20"]),
        (["--streams=3"], ["streams=3", "global_batch_size=100", "2 and 4"]),
        (["--epochs=many"], ["--epochs", "many"]),
        (["extra"], ["extra"]),
    ],
)
def test_bad_values_name_the_flag_the_value_and_the_bound(flags, facts):
    with pytest.raises(UsageError) as caught:
        parse([*PATHS, *flags])
    message = str(caught.value)
    assert "\n" not in message
    for fact in facts:
        assert fact in message


def test_a_value_outside_the_bounds_that_a_flag_declares_is_named_with_them():
    tried = 0
    for name, flag in flags_of(TrainConfig).items():
        for bound, limit in flag.field.metadata["bounds"].items():
            outside = {"least": limit - 1, "above": limit, "below": limit, "most": 2 * limit}[bound]
            with pytest.raises(UsageError, match=rf"^--{name}=\S+: .*({re.escape(format(limit, 'g'))}|{limit:.0f})"):
                parse([*PATHS, f"--{name}={outside:.17g}", *(f"--{k}={v}" for k, v in BESIDE.get(name, {}).items())])
            tried += 1
        for known in sorted(flag.field.metadata["known"] or ())[:1]:
            with pytest.raises(UsageError, match=f"--{name}: unknown '{known}x'; did you mean '{known}'"):
                parse([*PATHS, f"--{name}={known}x"])
            tried += 1
    assert tried > 60


# What a flag needs beside it to be taken.
BESIDE: dict[str, dict[str, object]] = {
    **{"keep_best": {"eval_every": 5}, "early_stopping": {"eval_every": 5}, "dropout": {"model": "resnet20"}},
    **{"replicas_to_aggregate": SYNC, "max_staleness": SYNC, "num_replicas": {"strategy": "mirrored"}},
    "task_index": {"strategy": "multiworker", "worker_hosts": "a:1,b:2"},
}
# Absurd values that were seen to train: 0 says never, and what is never reached may be as far away as numbers go.
_NEVER = ("log_every", "summary_every", "eval_every", "checkpoint_every", "histogram_every", "image_every")
_NEVER += ("activation_every",)
_NEVER += (
    "summary_secs",
    "checkpoint_secs",
    "keep_best",
    "early_stopping",
    "max_corrupt",
    "max_staleness",
    "task_index",
)
_RATES = ("learning_rate", "decay_factor", "clip_norm", "weight_decay", "end_factor")
TAKEN = {
    0: {
        *_NEVER,
        *_RATES[3:],
        "headspace",
        "ema",
        "dropout",
        "label_smoothing",
        "momentum",
        "warmup_epochs",
        "seed",
        "prefetch",
    },
    1e12: {*_NEVER, *_RATES, "cache_bytes", "shuffle_bytes", "virtual_replicas", "train_steps", "max_to_keep"},
    1e30: {*_RATES, "summary_secs", "checkpoint_secs"},
    math.inf: {"summary_secs", "checkpoint_secs"},
}
NUMBERS = [name for name, flag in flags_of(TrainConfig).items() if flag.kind in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, 1e12, 1e30, math.nan, math.inf, -math.inf])
@pytest.mark.quick(6)
def test_numbers_that_overflow_fill_the_memory_or_wait_for_ever_are_refused_at_once(name, value):
    flags = {"data_dir": "D", "model_dir": "M", **BESIDE.get(name, {}), name: value}
    if name in TAKEN.get(value, ()):
        TrainConfig.of(**flags)
        return
    with pytest.raises(UsageError, match=rf"^(--)?{name}\b") as caught:
        TrainConfig.of(**flags)
    assert "\n" not in str(caught.value)


def test_what_an_earlier_run_trained_with_can_be_read():
    flags = {"data_dir": "D", "model_dir": "M", "steps_per_loop": 10**9, "prefetch": 5000}
    assert TrainConfig.of_stored({"run": flags}).order.prefetch == 5000


def test_a_data_set_may_be_at_a_url():
    assert parse(["--data_dir=gs://bucket/digits", "--model_dir=M"]).data.data_dir == "gs://bucket/digits"


def test_keywords_are_checked_as_flags_are_and_those_of_an_earlier_run_are_kept():
    """What was trained into a local folder `gs:/bucket/run` can be evaluated still."""
    flags = {"data_dir": "D", "model_dir": "gs://bucket/run"}
    with pytest.raises(UsageError, match="--model_dir=gs://bucket/run: "):
        TrainConfig.of(**flags)
    assert TrainConfig.of_stored({"run": flags}).run.model_dir == "gs://bucket/run"


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        (evaluate, ["--model_dir=gs://b/run"]),
        (evaluate, ["--model_dir=M", "--output=gs://b/run"]),
        (export, ["--model_dir=gs://b/run", "--output=out"]),
        (export, ["--model_dir=M", "--output=gs://b/run"]),
        (launch, ["--", "--data_dir=D", "--model_dir=gs://b/run"]),
        (launch, ["--target=slurm", "--", "--data_dir=D", "--model_dir=gs://b/run"]),
    ],
)
def test_every_command_refuses_a_url_to_write_to(command, flags, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="=gs://b/run: ") as caught:
        command.main(flags)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "at_fault"),
    [
        (["--model_dir=M", "--lr=1", "--seed=-1", "--epochs=2", "--train_steps=4"],
         ["--data_dir", "--seed=-1", "--train_steps=4", "'--lr'"]),
        ([*PATHS, "--log_every=x", "--seed=y", "--steps_per_loop=0", "--max_to_keep=0", "--ema=2"],
         ["--log_every", "--seed", "--ema=2", "--steps_per_loop=0", "--max_to_keep=0"]),
        ([*PATHS, "--sync", "--headspace=3", "--log_keys=K", "--eval_every=5", "--eval_split=none", "--best_mode=max"],
         ["--sync", "--headspace=3", "--eval_every=5", "--best_mode=max"]),
        # What depends on a flag that is wrong, or missing, is not checked: no word of one_device, of 100 rows, of D.
        ([*PATHS, "--strategy=mirored", "--sync", "--num_replicas=2", "--worker_hosts=a:1"], ["--strategy"]),
        ([*PATHS, "--global_batch_size=x", "--streams=3"], ["--global_batch_size"]),
        (["--model_dir=M", "--log_keys=M/keys", "--augment=shfit"], ["--data_dir", "--augment"]),
        ([*PATHS, "--eval_every=-1", "--keep_best=2"], ["--eval_every=-1"]),
        (["--model_dir=M", "--epochs", "--seed", "--model=lent", "--optimizer=adm", "extra", "more"],
         ["--epochs", "--seed", "--data_dir", "--model", "--optimizer", "'extra'"]),
        ([*PATHS, "--strategy=parameter_server", "--prefetch=3", "--profile=1:2", "--optimizer=nadam"],
         ["--prefetch=3", "--profile=1:2", "--optimizer=nadam"]),
        ([*PATHS, "--nosync=true", "--metrics_jsonl=~nobody-here/m", "--profile=3"],
         ["~nobody-here", "--nosync=true", "--profile=3"]),
    ],
)  # fmt: skip
def test_several_mistakes_are_told_together(flags, at_fault):
    with pytest.raises(UsageError) as caught:
        parse(flags)
    said = [str(mistake) for mistake in caught.value.mistakes]
    assert str(caught.value).splitlines() == said
    assert [name for name in at_fault if sum(name in one.partition(":")[0] + one[:40] for one in said) != 1] == []
    assert len(said) == len(at_fault), said


def test_keywords_with_several_mistakes_are_told_together():
    with pytest.raises(UsageError) as caught:
        TrainConfig.of(data_dir="D", learning_rat=1, seed="x", epochs=0, global_batch_size=10**30, streams=7)
    said = [str(mistake) for mistake in caught.value.mistakes]
    names = ["'learning_rat'", "seed='x'", "model_dir", "--global_batch_size=1", "--epochs=0"]
    assert [name for name, one in zip(names, said, strict=True) if name not in one] == []


def test_a_file_with_several_unknown_flags_is_told_whole(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rat: 1\nseed: 3\nsteps: {epoch: 4}\n")
    with pytest.raises(UsageError) as caught:
        parse([*PATHS, f"--config={path}"])
    assert ["'learning_rat'" in str(caught.value), len(caught.value.mistakes)] == [True, 2]


def test_paths_are_required():
    with pytest.raises(UsageError, match="^--data_dir and --model_dir are missing"):
        parse([])
    with pytest.raises(UsageError) as caught:
        parse(["--data_dir=D", "--train_dir=M", "--lr=1"])
    assert str(caught.value).splitlines() == [
        "flag: unknown '--train_dir'; did you mean '--model_dir' (a run in it is resumed, not wiped; --fresh starts "
        "over)? see --help",  # and so it is not missing
        "flag: unknown '--lr'; did you mean '--learning_rate'? see --help",
    ]


CLASSIC = {  # flags of cifar10_multi_gpu_train.py, the MNIST book and Supervisor programs: ours
    "train_dir": "model_dir",
    "max_steps": "train_steps",
    "num_gpus": "num_replicas",
    "batch_size": "global_batch_size",
    "num_epochs_per_decay": "decay_epochs",
    "learning_rate_decay_factor": "decay_factor",
    "initial_learning_rate": "learning_rate",
    "moving_average_decay": "ema",
    "use_fp16": "precision",
    "log_frequency": "log_every",
    "display_step": "log_every",
    "save_model_secs": "checkpoint_secs",
    "save_summaries_secs": "summary_secs",
    "eval_data": "eval_split",
    "sync_replicas": "sync",
    "total_num_replicas": "worker_hosts",
    "training_epochs": "epochs",
    "staircase": "decay_staircase",
    "variable_strategy": "strategy",
}


def test_the_flags_of_the_classic_programs_get_ours_in_one_message():
    with pytest.raises(UsageError) as caught:
        parse(["--data_dir=D", *(f"--{name}=1" for name in CLASSIC)])
    said = str(caught.value).splitlines()
    assert [
        f"unknown '--{old}'; did you mean '--{new}'" in line
        for (old, new), line in zip(CLASSIC.items(), said, strict=True)
    ] == [True] * len(CLASSIC)
    assert "rows of all replicas together" in said[list(CLASSIC).index("batch_size")]


CLUSTER = ("--ps_hosts=a:1", "--worker_hosts=b:1,c:1", "--job_name=worker", "--task_index=1")


def test_the_flags_of_a_classic_cluster_imply_the_strategy():
    """A parameter server has no part in another one."""
    config = parse(["--data_dir=D", "--model_dir=M", *CLUSTER])
    assert config.run.strategy == "parameter_server"
    with pytest.raises(UsageError, match="--ps_hosts=a:1 with --strategy=multiworker: its processes are all workers"):
        parse(["--data_dir=D", "--model_dir=M", *CLUSTER, "--strategy=multiworker"])


def test_a_run_that_kept_no_average_resumes_without_one(tmp_path):
    (tmp_path / "config.yaml").write_text(f"data_dir: D\nmodel_dir: {tmp_path}\nmodel: cifar10_cnn\n")
    assert not parse([f"--model_dir={tmp_path}"]).optimizer.ema
    assert parse([f"--model_dir={tmp_path}", "--ema=0.9"]).optimizer.ema == 0.9
    assert parse(["--data_dir=D", f"--model_dir={tmp_path}", "--model=cifar10_cnn"]).optimizer.ema == 0.9999


@pytest.mark.parametrize(
    ("model_dir", "where"),
    [("data", "is"), ("data/run", "lies in"), ("link/run", "lies in"), ("data/../data/", "is"), (".", "holds")],
)
def test_a_run_does_not_write_into_its_data(model_dir, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    expected = rf"--model_dir={re.escape(model_dir)}: {where} .*--data_dir="
    for data_dir in ("data", "link", "other=1,data=2"):
        for check in (
            lambda given: parse([f"--data_dir={given}", f"--model_dir={model_dir}"]),
            lambda given: evaluate.main([f"--data_dir={given}", f"--model_dir={model_dir}"]),
            lambda given: launch.main(["--", f"--data_dir={given}", f"--model_dir={model_dir}"]),
        ):
            with pytest.raises(UsageError, match=expected):
                check(data_dir)
    with pytest.raises(UsageError, match="--output=data/x: lies in .*--data_dir=link"):
        export.main(["--data_dir=link", "--model_dir=M", "--output=data/x"])
    parse(["--data_dir=data", "--model_dir=data-run"])
    parse(["--data_dir=gs://bucket/data", "--model_dir=data"])


@pytest.mark.parametrize("data_dir", ["/", "/tmp/..", "data=1,/=2"])
def test_the_root_is_no_data_set(data_dir):
    with pytest.raises(UsageError, match=f"--data_dir={data_dir}: "):
        parse([f"--data_dir={data_dir}", "--model_dir=M"])


def test_what_happens_every_so_many_steps_may_never_happen():
    flags = [f"--{name}_every=0" for name in ("log", "summary", "eval", "checkpoint")]
    steps = parse([*PATHS, *flags, "--train_steps=1e3"]).steps
    assert (steps.log_every, steps.summary_every, steps.eval_every, steps.checkpoint_every) == (0, 0, 0, 0)
    assert steps.train_steps == 1000


@pytest.mark.parametrize(
    "flags",
    [
        ["--best_mode=auto", "--eval_every=0", "--eval_split=none", "--image_every=0", "--summary_every=0"],
        ["--best_metric=", "--keep_best=0"],
        ["--best_metric=loss", "--best_mode=min", "--early_stopping=1", "--eval_every=5"],
        ["--best_metric=loss", "--keep_best=1", "--eval_every=5"],
        ["--histogram_every=5", "--image_every=5", "--summary_every=0", "--summary_secs=9"],
        ["--seed=4294967295", "--warmup_epochs=1e8"],
    ],
)
def test_what_is_used_and_the_defaults_are_taken(flags):
    parse([*PATHS, *flags])


def test_what_an_earlier_run_stored_and_did_not_use_is_taken():
    flags = {"eval_every": 5, "eval_split": "none", "best_metric": "loss", "image_every": 5, "summary_every": 0}
    stored = TrainConfig.of_stored({"": {"data_dir": "D", "model_dir": "M", **flags}})
    assert stored.steps.eval_every == 5
    with pytest.raises(UsageError, match="--eval_every=5 with --eval_split=none"):
        TrainConfig.of(data_dir="D", model_dir="M", **flags)


def test_one_replica_on_one_device_is_fine():
    assert parse([*PATHS, "--num_replicas=1"]).run.num_replicas == 1


def test_workers_of_parameter_servers_take_several_data_sets_in_turns_alone():
    cluster = ["--strategy=parameter_server", "--ps_hosts=a:1", "--worker_hosts=b:1"]
    flags = ["--data_dir=A=1,B=1", "--model_dir=M", *cluster]
    parse([*flags, "--mixture_schedule=0: A=1, B=0; 9: A=0, B=1"])
    for schedule in ([], ["--mixture_schedule=0: A=1, B=0; 9: A=1, B=1"]):
        with pytest.raises(UsageError, match="--strategy=parameter_server: a step uses one data set; "):
            parse([*flags, *schedule])
