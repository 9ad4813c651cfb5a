import pytest

from beam_jobs import validate
from pipeline.errors import DataError


@pytest.fixture
def run(capfd):
    """Runs `validate` in this process; returns its lines, and the error's text if it failed."""

    def command(*arguments):
        capfd.readouterr()
        error = ""
        try:
            validate.main([str(argument) for argument in arguments])
        except DataError as raised:
            error = str(raised)
        return capfd.readouterr().out.splitlines(), error

    return command
