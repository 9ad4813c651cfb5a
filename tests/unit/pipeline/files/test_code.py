import pytest

from pipeline.errors import UsageError
from pipeline.files.code import load_code


@pytest.mark.parametrize("text", [":dumps", "json:", "json:dumps.x"])
def test_no_name(text):
    with pytest.raises(UsageError, match=f"--model={text}: "):
        load_code("--model", text)
