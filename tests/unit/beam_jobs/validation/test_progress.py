import pytest

from beam_jobs.validation.progress import Progress
from tests.displays import later
from tests.validated import write


@pytest.fixture
def made(tmp_path):
    (tmp_path / "marks").mkdir()
    return write(tmp_path / "made", "raw", (300, 200, 300)), tmp_path / "marks"


def test_finished_shards_are_counted_by_their_bytes(made):
    manifest, marks = made
    with Progress(manifest, str(marks)) as progress:
        for number in (0, 2):
            (marks / str(number)).touch()
        later(progress, 5.1)
        progress.show()
        sizes = [shard.num_bytes for shard in manifest.shards]
        assert (progress.finished, progress.done, progress.total) == (2, sizes[0] + sizes[2], sum(sizes))
        mib = [f"{size / (1 << 20):.1f}" for size in (progress.done, progress.total)]
        assert progress.text().startswith(f"2 of 4 shards, {mib[0]} of {mib[1]} MiB, 0.0 MiB/s")


def test_marks_that_cannot_be_seen_are_no_error(made):
    manifest, marks = made
    marks.rmdir()
    progress = Progress(manifest, str(marks))
    later(progress, 6)
    progress.show()
    assert progress.finished == 0
