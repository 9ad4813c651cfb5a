"""The command `edit`: sets labels and deletes records, as the next version of a data set, without a conversion."""

from __future__ import annotations

import codecs
import dataclasses
import os
from collections.abc import Iterator, Sequence

from beam_jobs import flag_values
from beam_jobs.report import card
from beam_jobs.report.summary import by_size, kept_version
from beam_jobs.shards import edited
from beam_jobs.shards.edited import Edits, Label, Places
from beam_jobs.sink import Sink, sink_of
from beam_jobs.sink.present import notes
from beam_jobs.sources import label_table
from beam_jobs.sources.appended import behind
from pipeline import manifest
from pipeline.commands import commandline
from pipeline.commands.flags import check_all, flag
from pipeline.commands.text import count_of, size_of
from pipeline.errors import DataError, UsageError, reason_of, to_run
from pipeline.files.paths import path_of, with_version
from pipeline.manifest import Manifest, naming, versions

_SECRET = "..."  # replaces keys on the card


@dataclasses.dataclass(frozen=True)
class EditConfig:
    """Records keep their splits and their order; shards without records to edit stay as they are."""

    data_dir: str = flag(text="the data set's folder", positional=True, metavar="DATA_DIR")
    set_labels: str = flag(
        "", "table (CSV, TSV, JSON, Parquet) with a column key and a column label: the labels to set"
    )
    delete: str = flag(
        "",
        "keys of records to delete, separated by commas, or @FILE: a file with one key on each line; older "
        "versions that held one of them cannot be read afterwards",
    )
    dry_run: bool = flag(False, "show what would be changed; write nothing")

    def __post_init__(self) -> None:
        check_all(
            lambda: flag_values.check_path("data_dir", self.data_dir),
            lambda: flag_values.check_path("set_labels", self.set_labels),
            self._check_given,
            self._check_folder,
        )

    def _check_given(self) -> None:
        if not self.set_labels and not self.delete:
            raise UsageError("nothing to change; give --set_labels=FILE, --delete=KEYS, or both")

    def _check_folder(self) -> None:
        place, version = with_version(self.data_dir)
        if self.data_dir.startswith("hdfs://"):
            raise UsageError(
                f"DATA_DIR={self.data_dir}: HDFS cannot replace a manifest in one step, as a folder or an object store "
                "can; edit in a local or mounted folder, then copy all of it"
            )
        if not self.data_dir.strip():
            raise UsageError(f"DATA_DIR={self.data_dir!r}: must be the folder of a data set; see --help")
        if version is not None:
            raise UsageError(f"DATA_DIR={self.data_dir}: an edit follows the newest version; give {place}")

    @property
    def deleted(self) -> frozenset[bytes]:
        """Parsed `delete`: keys.

        Raises:
          DataError: the file cannot be read.
          UsageError: the flag names no key.
        """
        keys = os.fsencode(self.delete).split(b",")
        if self.delete.startswith("@"):
            path = path_of(self.delete[1:])
            try:
                keys = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
            except OSError as error:
                raise DataError(f"cannot be read: {reason_of(error)}", path=path) from None
        if self.delete and not any(keys):
            raise UsageError(f"--delete={self.delete}: names no key")
        return frozenset(filter(None, keys))


def edit(command: str, argv: Sequence[str] | None) -> None:
    """Runs an edit from its command line.

    Args:
      command: name of the command, for --help.
      argv: flags; None for the process's own arguments.

    Raises:
      PipelineError: flags or data are bad, the data set lacks some keys, or another command is writing there.
    """
    config = commandline.parse(command, "Sets labels and deletes records of a data set.", EditConfig, argv)
    _editable(config.data_dir)
    sink = sink_of(config.data_dir, "an edit", "DATA_DIR")
    sink.check("", "")
    with sink.locked():
        parent = _editable(config.data_dir)  # another command may have changed it meanwhile
        edits = _edits(config, parent)
        is_made = parent.edit is not None and parent.edit.sha256 == edits.digest(parent.parent)
        places = None if is_made else _places(sink, parent, edits)
        if config.dry_run:
            lines = _plan_lines(sink, parent, edits, places) if places else _result_lines(sink, parent, None, edits)
            print("\n".join(lines))
            return
        if places is None:
            sink.tidy()
        else:
            print("\n".join(_plan_lines(sink, parent, edits, places)), flush=True)
            names, digest = places.names(parent), edits.digest(parent.digest)
            num_bytes = sum(shard.num_bytes for shard in parent.shards if names.get(shard.file))
            with sink.edited(digest, [name for name in names.values() if name], num_bytes, parent) as folder:
                edited.write(folder, sink.data_dir, parent, edits, places)
        made = manifest.load(sink.data_dir)
        no_card = None
        if not (sink.data_dir / naming.CARD).exists():  # also missing if a command was killed after publishing
            no_card = card.write_card(sink.data_dir, command, _shown_arguments(config))
        card.renew_croissant(sink.data_dir)
    for line in _result_lines(sink, made, parent if places else None, edits):
        print(line)
    for note in [*([no_card] if no_card else []), *notes(sink.data_dir, made)]:
        print(f"note: {note}")


def _editable(data_dir: str) -> Manifest:
    """Returns the newest version of a data set; raises UsageError if no conversion wrote its records."""
    found = manifest.load(data_dir)
    if found.is_in_place or not found.has_images or not found.source:
        raise UsageError(
            "holds records of another writer, which an edit cannot rewrite; change them where they come from "
            f"and index them again, or convert them: {to_run('beam_jobs.convert')} --dataset=tfrecord",
            path=data_dir,
        )
    return found


def _edits(config: EditConfig, parent: Manifest) -> Edits:
    labels: dict[bytes, Label] = {}
    names, deleted = parent.class_names, config.deleted
    if config.set_labels:
        labels, names = label_table.read(path_of(config.set_labels), parent)
    if both := sorted(labels.keys() & deleted):
        raise UsageError(
            f"--set_labels with --delete: {count_of(len(both), 'key')} in both, such as "
            f"{both[0].decode(errors='backslashreplace')!r}; leave it out of one of them"
        )
    return Edits(labels, deleted, names)


def _places(sink: Sink, parent: Manifest, edits: Edits) -> Places | None:
    """Returns the places of the records to change; None if nothing needs to change."""
    older = [made for made in versions.all_of(sink.data_dir) if made.digest != parent.digest] if edits.deleted else []
    found = edited.find(sink.data_dir, parent, older, edits)
    return found if found.labels or found.deleted else None


def _plan_lines(sink: Sink, parent: Manifest, edits: Edits, places: Places) -> Iterator[str]:
    shards = f"{len(places.names(parent)):,} of {count_of(len(parent.shards), 'shard')} to write again"
    yield f"{sink.shown}: version {parent.version + 1}: {places.edit}; {shards}"
    yield from behind("classes", parent.class_names, edits.class_names)
    if places.removed:
        after = dataclasses.replace(parent, edit=places.edit)
        gone = [str(made.version) for made in versions.all_of(sink.data_dir) if after.has_deleted(made)]
        which, they = (f"versions {', '.join(gone)}", "them") if len(gone) > 1 else (f"version {gone[0]}", "it")
        yield f"note: {which} held records to delete; afterwards no command reads {they}, and no run resumes on {they}"


def _result_lines(sink: Sink, made: Manifest, parent: Manifest | None, edits: Edits) -> Iterator[str]:
    if parent is None:
        yield f"{sink.shown}: its newest version has these edits; nothing to do"
    else:
        yield f"version {made.version} ({made.short}) of {made.dataset} is in {sink.shown}: {made.edit}"
        for name, split in by_size(made):
            sizes = f"{count_of(len(split.shards), 'shard')}, {size_of(split.num_bytes)}"
            yield f"  {name}: {count_of(split.num_examples, 'example')}, {sizes}"
    if edits.deleted:
        left = "copies elsewhere are as they were"
        if sink.data_dir.is_remote:
            left += ", and so are older versions of objects, if the bucket keeps them"
        yield f"deleted: no file of the data set in {sink.shown} holds them any more; {left}"
    elif parent:
        yield kept_version(sink.shown, parent, made)


def _shown_arguments(config: EditConfig) -> list[str]:
    """Returns the arguments to show on the card, without the keys of deleted records."""
    labels = [f"--set_labels={config.set_labels}"] if config.set_labels else []
    return [config.data_dir, *labels, *([f"--delete={_SECRET}"] if config.delete else [])]
