"""`croissant.json`: a data set in MLCommons Croissant 1.1 format, for search engines and catalogues.

It follows from the manifest: the shards by split, the fields of their records, classes, source, parent and options. A
manifest has no SHA-256 of shards, so they are declared as file sets, which need none; the one file with a SHA-256 is
the manifest, which has the CRC32C of every shard. Entries that the manifest cannot know are for the user to add, and
are kept: license, creator, url, citeAs, datePublished, another name or description.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from pipeline.errors import DataError, reason_of
from pipeline.files.paths import StoragePath
from pipeline.manifest import naming
from pipeline.manifest.loading import parse
from pipeline.manifest.manifest import BOXES, MASK, POINTS, Feature, Manifest, SplitInfo

Node = dict[str, Any]

_CONFORMS = "http://mlcommons.org/croissant/1.1"
_OF_CROISSANT = (
    *("annotation", "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "excludes", "extract"),
    *("field", "fileProperty", "fileObject", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath"),
    *("key", "md5", "parentField", "path", "readLines", "recordSet", "references", "regex", "repeated", "replace"),
    *("samplingRate", "sdVersion", "separator", "source", "subField", "transform", "unArchive"),
)
_CONTEXT = {  # appendix 1 of the specification, and PROV-O for the provenance of a data set
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    **{name: f"cr:{name}" for name in _OF_CROISSANT},
}
# The specification identifies a format without a MIME type by the page that defines it.
_TFRECORD = "https://www.tensorflow.org/tutorials/load_data/tfrecord"
_NPY = "https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html"
_PACKED = {"GZIP": "application/gzip", "ZLIB": "application/zlib"}
_ENCODINGS = {"raw": "raw pixels, row by row", "png": "PNG files", "jpeg": "JPEG files", "any": "PNG and JPEG files"}
_COUNT = "http://www.wikidata.org/entity/Q4049983"  # cardinality: the specification's type for a number of records
_SPLITS = {"train": "cr:TrainingSplit", "validation": "cr:ValidationSplit", "test": "cr:TestSplit"}
_SPLITS |= {"val": _SPLITS["validation"], "training": _SPLITS["train"], "testing": _SPLITS["test"]}
_DTYPES = {"string": "sc:Text", **{name: f"cr:{name.title()}" for name in ("float32", "float64")}}
_DTYPES |= {f"{sign}int{bits}": f"cr:{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_OWN = (  # entries that `_own` writes
    *("@type", "conformsTo", "identifier", "version", "prov:wasDerivedFrom", "prov:wasGeneratedBy"),
    *("distribution", "recordSet"),
)
_URN = "urn:stepfeed:"
_BY = "prov:wasAssociatedWith"
_PACKAGES = ("stepfeed", "apache-beam", "numpy", "pillow", "pyarrow")  # packages that shape a conversion's bytes


def files(place: StoragePath | None, made: Manifest, is_new: bool = False) -> dict[str, bytes]:
    """Returns {name: content} of the file to write with a manifest; it keeps what the user has added.

    Args:
      place: folder that may have a file to replace; None if there is nothing to replace.
      made: manifest that is written with it.
      is_new: whether this process made the records. If so, a missing file is written, and this process's package
        versions belong to the data; otherwise only an existing file of ours is updated.

    Raises:
      DataError: the existing file cannot be read.
    """
    before = _content_of(place / naming.CROISSANT) if place else None
    is_written = is_new if before is None else is_ours(before)
    return {naming.CROISSANT: _made(made.to_bytes(), before, is_new)} if is_written else {}


def renewed(place: StoragePath) -> dict[str, bytes]:
    """Returns `files` for the manifest in a folder, which an earlier release may have written; empty if up to date.

    Raises:
      DataError: a file cannot be read, or is not valid.
    """
    text, before = (place / naming.MANIFEST).read_bytes(), _content_of(place / naming.CROISSANT)
    if before is not None and not (is_ours(before) and problem_of(before, text)):
        return {}
    return {naming.CROISSANT: _made(text, before, is_new=False)}


def problem_of(data: bytes, text: bytes) -> str | None:
    """Returns a problem with the content of our file next to a manifest, or None; ignores the user's additions."""
    found = _parsed(data) or {}
    wrong = [name for name, value in _own(_manifest(text), text).items() if found.get(name) != value]
    if not wrong:
        return None
    if "identifier" in wrong:
        return "describes another data set or version: its identifier has not the digest of the manifest"
    return f"is not what the manifest says, in {', '.join(wrong)}"


def is_ours(data: bytes) -> bool:
    """Returns whether a file with this name is ours, not another program's."""
    return _parsed(data) is not None


def _content_of(path: StoragePath) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"cannot be read: {reason_of(error)}", path=path) from None


def _made(text: bytes, before: bytes | None, is_new: bool) -> bytes:
    made = _manifest(text)
    added = {name: value for name, value in (_parsed(before) or {}).items() if name not in _OWN}
    packages = added.pop(_BY, [])
    if is_new:  # an append adds its own versions to the parent's
        packages = [*packages, *(one for one in _packages() if one not in packages)]
    content: Node = {
        "@context": {**added.pop("@context", {}), **_CONTEXT},
        "name": made.dataset,
        "description": f"{made.dataset} as TFRecord shards of tf.train.Example. {naming.MANIFEST} has their CRC32Cs.",
        **added,
        **({_BY: packages} if packages else {}),
        **_own(made, text),
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def _parsed(data: bytes | None) -> Node | None:
    """Returns the JSON object of a file if it is ours; otherwise None."""
    try:
        found = json.loads(data or b"null")
    except (ValueError, RecursionError):  # includes bad UTF-8
        return None
    if not isinstance(found, dict) or not str(found.get("identifier")).startswith(_URN):
        return None
    return found if isinstance(found.get("@context", {}), dict) and isinstance(found.get(_BY, []), list) else None


def _manifest(text: bytes) -> Manifest:
    """Returns the manifest in a file's content, with splits and features in the file's order, sorted by name."""
    return parse(text.decode(), naming.MANIFEST)


def _own(made: Manifest, text: bytes) -> Node:
    """Returns the entries that follow from the manifest; `text` is the content of its file, for `_manifest`."""
    derived = [
        {"@type": "prov:Entity", "prov:label": file.file, "contentSize": f"{file.num_bytes} B", "sha256": file.sha256}
        for file in made.source
    ]
    # A value with parts is stored as text, since an object would be a node of the graph.
    plain = {n: json.dumps(v, sort_keys=True) if isinstance(v, dict | list) else v for n, v in made.options.items()}
    options = [{"@type": "PropertyValue", "name": name, "value": value} for name, value in sorted(plain.items())]
    return {
        "@type": "sc:Dataset",
        "conformsTo": _CONFORMS,
        "identifier": _identifier(made.digest),
        # Semantic versioning in the sense of the specification: an append leaves existing data unchanged.
        "version": f"1.{made.version - 1}.0",
        "prov:wasDerivedFrom": [*([{"@id": _identifier(made.parent)}] if made.parent else []), *derived],
        "prov:wasGeneratedBy": {"@type": "prov:Activity", "additionalProperty": options},
        "distribution": list(_distribution(made, text)),
        "recordSet": [*_splits(made), *_enumerations(made), *_records(made), *_columns(made)],
    }


def _identifier(digest: str) -> str:
    return f"{_URN}{digest}"


def _packages() -> list[Node]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # the package runs from its sources, or is not needed
            continue
    return [{"@type": "prov:SoftwareAgent", "prov:label": f"{name} {version}"} for name, version in found.items()]


def _distribution(made: Manifest, text: bytes) -> Iterator[Node]:
    yield {
        "@type": "cr:FileObject",
        "@id": naming.MANIFEST,
        "name": naming.MANIFEST,
        "contentUrl": naming.MANIFEST,
        "contentSize": f"{len(text)} B",
        "encodingFormat": "application/json",
        "sha256": hashlib.sha256(text).hexdigest(),
    }
    for split, info in made.splits.items():
        packings = sorted({shard.compression for shard in info.shards} - {""})
        yield {
            "@type": "cr:FileSet",
            "@id": _shards_of(split),
            "description": f"shards: {len(info.shards)}, bytes: {info.num_bytes}",
            "encodingFormat": [_TFRECORD, *(_PACKED[packing] for packing in packings)],
            "includes": _patterns(made, split, info),
        }
        if made.columns:
            yield {
                "@type": "cr:FileSet",
                "@id": f"{split}-columns",
                "encodingFormat": _NPY,
                "includes": [
                    naming.column_name(split, name, column.files[split])
                    for name, column in made.columns.items()
                    if split in column.files
                ],
            }


def _patterns(made: Manifest, split: str, info: SplitInfo) -> list[str]:
    """Returns one pattern for a conversion's shards, otherwise the name of each file.

    A later version's folder may also contain older shards that an edit has replaced.
    """
    named = [naming.parse_shard_name(shard.file) for shard in info.shards]
    if made.version == 1 and all(found and found[0] == split for found in named):
        return [f"{split}-*.tfrecord*"]
    return [glob.escape(shard.file) for shard in info.shards]


def _shards_of(split: str) -> str:
    return f"{split}-shards"


def _record_set(name: str, fields: Sequence[Node], **more: Any) -> Node:
    return {"@type": "cr:RecordSet", "@id": name, **more, "field": list(fields)}


def _field(name: str, types: str | Sequence[str], **more: Any) -> Node:
    return {"@type": "cr:Field", "@id": name, "dataType": types, **more}


def _splits(made: Manifest) -> Iterator[Node]:
    fields = [_field("split-names/name", "sc:Text"), _field("split-names/url", ["sc:URL", "cr:Split"])]
    data = [{"split-names/name": name, "split-names/url": _SPLITS.get(name, "cr:Split")} for name in made.splits]
    key = {"@id": "split-names/name"}
    yield _record_set("split-names", fields, dataType="cr:Split", key=key, data=data)


def _classes_of(made: Manifest) -> dict[str, tuple[str, ...]]:
    """Returns {feature: names of its classes}, by number."""
    label = {"label": made.class_names} if "label" in made.features and made.features["label"].is_class else {}
    return {
        name: names
        for name, names in {**{n: f.class_names for n, f in made.features.items()}, **label}.items()
        if names
    }


def _enumerations(made: Manifest) -> Iterator[Node]:
    for feature, names in _classes_of(made).items():
        at = _classes_id(feature)
        data = [{f"{at}/number": number, f"{at}/name": name} for number, name in enumerate(names)]
        fields = [_field(f"{at}/number", "cr:Int64"), _field(f"{at}/name", "sc:Text")]
        yield _record_set(at, fields, dataType="sc:Enumeration", key={"@id": f"{at}/number"}, data=data)


def _classes_id(feature: str) -> str:
    return f"{quote(feature)}-classes"


def _records(made: Manifest) -> Iterator[Node]:
    for split, info in made.splits.items() if made.features else ():
        fields = [_of_feature(made, split, name, feature) for name, feature in made.features.items()]
        key = {"key": {"@id": f"{split}/key"}} if made.key_feature else {}
        count = _field(f"{split}/count", _COUNT, value=info.num_examples)
        yield _record_set(split, fields, **key, annotation=count)


def _of_feature(made: Manifest, split: str, name: str, feature: Feature) -> Node:
    types: list[str] = [_DTYPES[feature.stored_dtype]]
    # An image file is one value; raw pixels are an array. Records differ in their number of boxes and points.
    shape = feature.shape if feature.encoding in (None, "raw") else ()
    if feature.encoding not in (None, "raw"):
        types = ["sc:ImageObject"]
    elif feature.convention and name != MASK:
        shape = (None, *feature.shape[1:])
    types += {"label": ["cr:Label"], MASK: ["cr:SegmentationMask"], BOXES: ["cr:BoundingBox"]}.get(name, [])
    more: Node = {"description": _ENCODINGS[feature.encoding]} if feature.encoding else {}
    if feature.offset:
        more["description"] = f"the class is the number here {feature.offset:+d}"
    elif name in _classes_of(made) and not feature.texts:
        more["references"] = {"field": {"@id": f"{_classes_id(name)}/number"}}
    at = f"{split}/{quote(name)}"
    if feature.parts:  # the records have one feature for each number of a box or point
        each = {"isArray": True, "arrayShape": "-1"}
        parts = [_field(f"{at}/{quote(p)}", types[:1], **each, source=_source(split, p)) for p in feature.parts]
        return _field(at, types[1:] or types, **more, subField=parts)
    source = _source(split, feature.named(name))
    if name in (BOXES, POINTS) and feature.convention:
        source["format"] = feature.convention.upper()
    if shape:
        more |= {"isArray": True, "arrayShape": ",".join("-1" if size is None else str(size) for size in shape)}
    return _field(at, types, **more, source=source)


def _source(split: str, column: str) -> Node:
    return {"fileSet": {"@id": _shards_of(split)}, "extract": {"column": column}}


def _columns(made: Manifest) -> Iterator[Node]:
    for split in made.splits if made.columns else ():
        at = f"{split}-values"
        fields = [
            _field(
                f"{at}/{name}",
                _DTYPES[column.dtype],
                **({"description": f"numbers of strings, which {naming.MANIFEST} lists"} if column.values else {}),
                source={"fileSet": {"@id": f"{split}-columns"}, "extract": {"column": name}},
            )
            for name, column in made.columns.items()
        ]
        yield _record_set(at, fields, description=f"one value per record of {split}, in the order of its shards")
