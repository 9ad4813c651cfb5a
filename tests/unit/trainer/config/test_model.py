import pytest

from pipeline.errors import UsageError
from trainer.config.model import load_code, name_of_code


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


@pytest.mark.parametrize("text", [":dumps", "json:", "json:dumps.x"])
def test_no_name(text):
    with pytest.raises(UsageError, match=f"--model={text}: "):
        load_code("--model", text)
