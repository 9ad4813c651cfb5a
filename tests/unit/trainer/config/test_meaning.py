import dataclasses

import pytest

from pipeline.commands.flags import flags_of
from pipeline.errors import UsageError
from trainer.config import TrainConfig
from trainer.config.meaning import check_parameter_server, flag, shapes_training
from trainer.config.model import MODELS, OPTIMIZER_DEFAULTS


@dataclasses.dataclass(frozen=True)
class NewFlags:
    """A group with flags that only their declarations know."""

    plain: int = flag(3, "a number")
    served: int = flag(0, "a number", parameter_server="has no meaning")
    kind: str = flag("a", "a name", parameter_server={"b": "use a"})
    silent: bool = flag(False, "a switch", shapes_training=False)


@dataclasses.dataclass(frozen=True)
class NewConfig:
    """A config of one group."""

    new: NewFlags


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
    assert shaping == {"plain": True, "served": True, "kind": True, "silent": False}


def test_flags_that_may_differ_from_machine_to_machine():
    told = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata["per_machine"]}
    files = {"model_dir", "log_keys", "log_losses", "metrics_jsonl"}
    assert told == {"data_dir", *files, "cache_dir", "cache_bytes", "log_time"}


def test_flags_say_which_defaults_are_the_models():
    told = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata["by_model"]}
    tables = [*(model.defaults for model in MODELS.values()), *OPTIMIZER_DEFAULTS.values()]
    assert told == {name for flags in tables for name in flags}


def test_the_launcher_sets_what_tells_a_process_which_one_it_is():
    told = {name for name, one in flags_of(TrainConfig).items() if one.field.metadata["per_process"]}
    assert told == {"worker_hosts", "ps_hosts", "chief_host", "job_name", "task_index"}
