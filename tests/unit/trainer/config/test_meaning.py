import dataclasses
from typing import ClassVar

import pytest

from pipeline.commands.flags import flags_of
from pipeline.errors import UsageError
from trainer.config import TrainConfig
from trainer.config.meaning import check_parameter_server, elsewhere, flag, given, in_replay, shapes_training
from trainer.config.model import MODELS, OPTIMIZER_DEFAULTS


@dataclasses.dataclass(frozen=True)
class NewFlags:
    """A group with flags that only their declarations know."""

    plain: int = flag(3, "a number")
    served: int = flag(0, "a number", parameter_server="has no meaning")
    kind: str = flag("a", "a name", parameter_server={"b": "use a"})
    silent: bool = flag(False, "a switch", shapes_training=False)
    log: str | None = flag(None, "a folder", writes="folder", replay="")
    devices: int = flag(1, "a number", of_topology=True)


@dataclasses.dataclass(frozen=True)
class NewHosts:
    """A group that is all of one meaning."""

    of_topology: ClassVar[bool] = True

    host: str | None = flag(None, "a name")
    name: str | None = flag(None, "a name", of_topology=False)


@dataclasses.dataclass(frozen=True)
class NewConfig:
    """A config of two groups."""

    new: NewFlags
    hosts: NewHosts = dataclasses.field(default_factory=NewHosts)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"served": 1}, "--served=1 with --strategy=parameter_server: has no meaning"),
        ({"kind": "b"}, "--kind=b with --strategy=parameter_server: use a"),
    ],
)
def test_what_a_new_flag_says_of_parameter_servers_is_enough(values, said):
    with pytest.raises(UsageError) as caught:
        check_parameter_server(NewConfig(NewFlags(**values)))
    assert str(caught.value) == said
    check_parameter_server(NewConfig(NewFlags(plain=4, kind="c", silent=True)))


def test_a_flag_shapes_the_training_unless_it_or_its_group_says_no():
    shaping = {field.name: shapes_training(NewFlags(), field) for field in dataclasses.fields(NewFlags)}
    assert {name for name, shapes in shaping.items() if not shapes} == {"silent"}


def test_a_new_flag_says_who_else_takes_its_default():
    assert elsewhere(NewConfig) == {"devices": 1, "host": None}
    assert in_replay(NewConfig) == {"devices": 1, "host": None, "log": ""}
    assert given(NewConfig(NewFlags(log="/logs")), "writes") == {"log": "/logs"}
    assert given(NewConfig(NewFlags()), "writes") == {}


def test_a_model_is_used_elsewhere_however_its_run_summed_gradients():
    run = TrainConfig.of(data_dir="data", model_dir="run", strategy="mirrored", all_reduce="nccl", num_replicas=2)
    config = TrainConfig.of_stored(dataclasses.asdict(run), **elsewhere(TrainConfig))
    assert (config.run.strategy, config.run.all_reduce, config.run.num_replicas) == ("one_device", "auto", None)


def test_flags_that_may_differ_from_machine_to_machine():
    told = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata["per_machine"]}
    files = {"model_dir", "log_keys", "log_losses", "metrics_jsonl"}
    assert told == {"data_dir", "eval_data_dir", *files, "cache_dir", "cache_bytes", "log_time"}


def test_flags_say_which_defaults_are_the_models():
    told = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata["by_model"]}
    tables = [*(model.defaults for model in MODELS.values()), *OPTIMIZER_DEFAULTS.values()]
    assert told == {name for flags in tables for name in flags}


def test_the_launcher_sets_what_tells_a_process_which_one_it_is():
    told = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata["per_process"]}
    assert told == {"worker_hosts", "ps_hosts", "chief_host", "job_name", "task_index"}
