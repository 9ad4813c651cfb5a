"""`python -m pipeline.audit DATA_DIR`: proves that an epoch sees each record once; shows which worker reads what."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline import manifest as manifests
from pipeline.audit.config import AuditConfig
from pipeline.commands import commandline
from pipeline.errors import UsageError, as_flag
from pipeline.manifest.sources import parse_sources, sources_of

COMMAND = "pipeline.audit"


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the proof and the tables.

    Raises:
      DataError: the proof does not hold, a run saw something else, or there is no valid data set.
      UsageError: a flag cannot work.
    """
    description = "Prove that every record is seen once, and show which worker reads what."
    config = commandline.parse(COMMAND, description, AuditConfig, argv)
    # Checked before the run's own values are filled in: those may come together with its logs.
    for name in ("augment", "resize") if config.observed is not None else ():
        if (given := getattr(config.order, name)) is not None:
            raise UsageError(f"--{name}={given} with --observed: the logs have the order, not the pixels; leave it out")
    # Not checked in the config: a misspelt --global_batch_size would be reported as missing as well.
    if config.order.global_batch_size is None and config.observed is None and config.model_dir is None:
        for source in sources_of(parse_sources(str(config.data_dir), "DATA_DIR"), "train"):
            manifests.load(source.data_dir)  # if this is not a data set, report that first
        raise UsageError("--global_batch_size: needed, the rows per step over all replicas (or give --observed)")
    from pipeline.audit import command  # noqa: PLC0415, here because --help must be fast

    with as_flag("split", "--split"):
        command.run(config)


def entry_point() -> None:
    """Runs the command as a console script."""
    commandline.run(COMMAND, main)


if __name__ == "__main__":
    entry_point()
