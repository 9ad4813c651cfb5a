import contextlib

import pytest

from tests.unit.trainer.launching.local.puppets import Puppets


@pytest.fixture
def puppets(tmp_path):
    """Returns a function that makes the processes of a job with some flags of the launcher."""
    with contextlib.ExitStack() as opened:
        yield lambda *flags, **options: opened.enter_context(Puppets(tmp_path / "run", *flags, **options))
