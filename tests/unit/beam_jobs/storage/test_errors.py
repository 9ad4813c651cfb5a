import errno

import pyarrow
import pytest

from beam_jobs.storage.errors import kind_of, one_line
from pipeline.errors import DataError, TransientError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), TransientError),
        (PermissionError(errno.EACCES, "Permission denied"), TransientError),
        (
            OSError(
                "When reading information for key 'x' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject"
            ),
            TransientError,
        ),
        (OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted)"), TransientError),
        (OSError("Corrupt snappy compressed data."), DataError),  # pyarrow's of a Parquet file
        (pyarrow.ArrowInvalid("Parquet magic bytes not found in footer"), DataError),
        (TransientError("x"), TransientError),
        (DataError("x"), DataError),
    ],
)
def test_what_a_rerun_may_mend_is_told_from_bad_data(error, kind):
    assert kind_of(error) is kind
    with pytest.raises(DataError) as caught, one_line("/x", "read"):
        raise error
    assert type(caught.value) is kind
