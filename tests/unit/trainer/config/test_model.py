import pytest

from pipeline.errors import UsageError
from pipeline.files.code import load_code
from trainer.config.model import name_of_code


def named():
    """Found by its name."""


def test_what_has_a_name_is_found_by_it():
    assert name_of_code("model", named).endswith("test_model:named")
    assert load_code("--model", "json:dumps").__name__ == "dumps"


def test_what_is_local_to_a_function_is_refused():
    def local():
        pass

    with pytest.raises(UsageError, match=r"^model .*local"):
        name_of_code("model", local)
