"""The algorithms that XLA chose on a run's GPUs, kept in the run's folder for all workers and every restart.

XLA tries several kernels for a convolution or a product and picks the fastest, so a restart would end with different
bits. If a run promises its bits, XLA only picks deterministic kernels, and its choices are kept: the chief makes XLA
write them to a draft, which becomes the run's file before each checkpoint, and later processes load that file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from pipeline.errors import named
from pipeline.files.code import versions
from pipeline.files.paths import sync
from pipeline.files.reading import content_of
from pipeline.files.write import replaced
from trainer.run_folder import RunFolder, check_file

VARIABLE = "XLA_FLAGS"  # XLA reads it once, when it first compiles; an unknown flag there ends the process


def pin(folder: RunFolder, is_chief: bool) -> None:
    """Makes XLA use the run's algorithms. Call it before XLA compiles anything.

    Algorithms from another version of TensorFlow are ignored, since XLA would reject them. A user's own flags in the
    environment take precedence.

    Args:
      folder: folder of the run.
      is_chief: whether this process writes XLA's choices.

    Raises:
      DataError: the folder cannot be read or written to.
    """
    flags = ["--xla_gpu_exclude_nondeterministic_ops=true"]
    if _content(folder).startswith(_stamp()):
        flags.append(f"--xla_gpu_load_autotune_results_from={_quoted(folder.algorithms)}")
    if is_chief:  # including the choices it has loaded
        with named(folder.algorithms_draft, "cannot be removed"):
            folder.algorithms_draft.unlink(missing_ok=True)
        flags.append(f"--xla_gpu_dump_autotune_results_to={_quoted(folder.algorithms_draft)}")
    os.environ[VARIABLE] = " ".join([*flags, *filter(None, [os.environ.get(VARIABLE)])])


def publish(folder: RunFolder) -> None:
    """Adopts XLA's choices so far as the run's algorithms; called by the chief before it saves a checkpoint.

    Raises:
      DataError: the folder cannot be written to.
    """
    # The save finds out whether the folder is still the run's.
    absent = contextlib.suppress(FileNotFoundError, NotADirectoryError)
    with named(folder.algorithms, "cannot be written"), absent:
        chosen = content_of(folder.algorithms_draft)  # XLA rewrites it after compiling more
        with replaced(folder.algorithms, f"{folder.algorithms.name}.tmp") as file:
            file.write(_stamp() + chosen)
        sync(folder.path)
        folder.algorithms_draft.unlink()


def in_words(folder: RunFolder) -> str:
    """Returns text on the run's algorithms for comparing workers: `XLA's algorithms of digest 3f2a...`."""
    content = _content(folder)
    return f"XLA's algorithms of digest {hashlib.sha256(content).hexdigest()[:12]}" if content else "no XLA algorithms"


def _content(folder: RunFolder) -> bytes:
    check_file(folder.algorithms)
    with named(folder.algorithms, "cannot be read"), contextlib.suppress(FileNotFoundError):
        return content_of(folder.algorithms)
    return b""


def _stamp() -> bytes:
    """Returns the first line of the file, a comment in protobuf text format."""
    return f"# {versions().get('TensorFlow', 'no TensorFlow')}\n".encode()


def _quoted(path: os.PathLike[str]) -> str:
    """Returns a path quoted for XLA, where a space would end the flag."""
    text = os.path.abspath(path)
    return f"'{text}'" if '"' in text else f'"{text}"'
