"""`croissant.json`: what it says of a data set, what a user adds to it, and that MLCommons' validator takes it."""

import hashlib
import json

import pytest

from beam_jobs import convert, validate
from pipeline import manifest
from pipeline.errors import PipelineError
from pipeline.index import __main__ as index
from pipeline.manifest import naming
from tests.helpers import annotated, foreign, forked
from tests.helpers.converting import convert_in_process
from tests.helpers.foreign import png
from tests.helpers.validated import pixels_of


def described(folder):
    return json.loads((folder / naming.CROISSANT).read_text())


def by_id(nodes):
    return {node["@id"]: node for node in nodes}


def edit(folder, **values):
    (folder / naming.CROISSANT).write_text(json.dumps(described(folder) | values))


def photos(folder, numbers):
    """Writes a red and a blue image per number, in folders `cat` and `dog`."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in numbers:
            (folder / name / f"{number}.png").write_bytes(png(pixels_of(number + len(name) * (name == "dog"), "raw")))
    return folder


def grown(tmp_path, numbers, *flags):
    source = photos(tmp_path / f"photos{numbers[0]}", numbers)
    convert.main(["--dataset=image_folder", f"--source={source}", f"--data_dir={tmp_path / 'data'}", *flags])
    return tmp_path / "data"


def checked(folder, *flags):
    """Returns the error of `validate`, or ""."""
    try:
        validate.main([str(folder), *flags])
    except PipelineError as error:
        return str(error)
    return ""


def test_shards_fields_classes_source_and_options_of_a_data_set(digits):
    made, text = manifest.load(digits), (digits / naming.MANIFEST).read_bytes()
    found = described(digits)
    assert (found["@type"], found["name"], found["version"]) == ("sc:Dataset", "digits", "1.0.0")
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.1"
    assert found["identifier"] == f"urn:stepfeed:{made.digest}"
    assert found["prov:wasDerivedFrom"] == [
        {
            "@type": "prov:Entity",
            "prov:label": made.source[0].file,
            "contentSize": f"{made.source[0].num_bytes} B",
            "sha256": made.source[0].sha256,
        }
    ]
    options = {one["name"]: one["value"] for one in found["prov:wasGeneratedBy"]["additionalProperty"]}
    assert options == {"num_shards": '{"test": 1, "train": 1}', "seed": 0}
    assert any(one["prov:label"].startswith("numpy ") for one in found["prov:wasAssociatedWith"])

    files = by_id(found["distribution"])
    assert (files["manifest.json"]["contentUrl"], files["manifest.json"]["contentSize"]) == (
        "manifest.json",
        f"{len(text)} B",
    )
    assert files["manifest.json"]["sha256"] == hashlib.sha256(text).hexdigest()
    assert files["train-shards"]["includes"] == ["train-*.tfrecord*"]
    for split in ("train", "test"):
        matched = {path.name for path in digits.glob(files[f"{split}-shards"]["includes"][0])}
        assert matched == {shard.file for shard in made.splits[split].shards}
        assert all((digits / name).exists() for name in files[f"{split}-columns"]["includes"])

    sets = by_id(found["recordSet"])
    assert sets["split-names"]["data"] == [
        {"split-names/name": "test", "split-names/url": "cr:TestSplit"},
        {"split-names/name": "train", "split-names/url": "cr:TrainingSplit"},
    ]
    assert sets["label-classes"]["data"][3] == {"label-classes/number": 3, "label-classes/name": "3"}
    assert len(sets["label-classes"]["data"]) == 10
    assert {split: sets[split]["annotation"]["value"] for split in ("train", "test")} == {"train": 1429, "test": 368}
    fields = by_id(sets["train"]["field"])
    assert fields.keys() == {"train/image", "train/label", "train/key"}
    assert (fields["train/image"]["dataType"], fields["train/image"]["arrayShape"]) == (["cr:UInt8"], "28,28,1")
    assert fields["train/label"]["references"] == {"field": {"@id": "label-classes/number"}}
    assert fields["train/label"]["source"] == {"fileSet": {"@id": "train-shards"}, "extract": {"column": "label"}}
    assert by_id(sets["train-values"]["field"])["train-values/bytes"]["dataType"] == "cr:Int16"


def test_boxes_and_their_classes_are_fields(tmp_path):
    source = annotated.coco(tmp_path / "coco", {"train": 3})
    convert_in_process("--dataset=coco", f"--source={source}", f"--data_dir={tmp_path / 'out'}")
    sets = by_id(described(tmp_path / "out")["recordSet"])
    fields = by_id(sets["train"]["field"])
    assert fields["train/image"]["dataType"] == ["sc:ImageObject"]
    assert fields["train/boxes"] | {"source": None} == {
        "@type": "cr:Field",
        "@id": "train/boxes",
        "dataType": ["cr:Float32", "cr:BoundingBox"],
        "isArray": True,
        "arrayShape": "-1,4",
        "source": None,
    }
    assert fields["train/boxes"]["source"]["format"] == "XYWH"
    assert fields["train/box_labels"]["references"] == {"field": {"@id": "box_labels-classes/number"}}
    assert [one["box_labels-classes/name"] for one in sets["box_labels-classes"]["data"]] == list(annotated.CLASSES)


def test_records_of_other_writers_are_named_as_these_have_them(tmp_path):
    foreign.tf_slim(tmp_path, {"train": (5, 4)})
    command = [str(tmp_path), "--feature_map=image:image/encoded,label:image/class/label", "--label_offset=-1"]
    index.main(command)
    assert not (tmp_path / naming.CROISSANT).exists()  # as it has no card
    assert checked(tmp_path, "--card") == ""
    found = described(tmp_path)
    assert by_id(found["distribution"])["train-shards"]["includes"] == [
        "train-00000-of-00002",
        "train-00001-of-00002",
    ]
    label = by_id(by_id(found["recordSet"])["train"]["field"])["train/label"]
    assert label["source"]["extract"] == {"column": "image/class/label"}
    assert label["description"] == "the class is the number here -1"
    edit(tmp_path, license="https://spdx.org/licenses/MIT", version="9.0.0")
    index.main([*command, "--overwrite"])
    assert described(tmp_path) == {**found, "license": "https://spdx.org/licenses/MIT"}


def test_another_programs_file_beside_records_of_another_writer_stays(tmp_path):
    foreign.flowers(tmp_path)
    (tmp_path / naming.CROISSANT).write_text('{"name": "flowers"}')
    index.main([str(tmp_path), "--feature_map=image:image,label:class,key:id"])
    assert checked(tmp_path, "--card") == ""
    assert (tmp_path / naming.CROISSANT).read_text() == '{"name": "flowers"}'
    assert checked(tmp_path) == ""


@pytest.mark.slow
def test_what_a_user_adds_stays_and_what_the_manifest_says_follows_it(tmp_path, capfd):
    data = grown(tmp_path, range(4))
    first = manifest.load(data)
    edit(data, license="https://spdx.org/licenses/MIT", description="Cats and dogs.")
    kept = ("license", "description", "name", "prov:wasAssociatedWith")
    before = described(data)
    assert checked(data) == ""
    index.main([str(data), "--add_columns=records:key"])
    assert "train-values/key" in by_id(by_id(described(data)["recordSet"])["train-values"]["field"])
    assert checked(data) == ""
    grown(tmp_path, range(10, 12), "--append")
    found = described(data)
    assert {name: found[name] for name in kept} == {name: before[name] for name in kept}
    assert found["version"] == "1.1.0"
    assert found["prov:wasDerivedFrom"][0] == {"@id": f"urn:stepfeed:{first.digest}"}
    assert by_id(found["recordSet"])["train"]["annotation"]["value"] == 12
    assert (checked(data), checked(f"{data}@1")) == ("", "")

    edit(data, version="2.0.0", recordSet=[])
    capfd.readouterr()
    assert checked(data) == f"{data}: 1 problem in the other files"
    assert (
        "croissant.json: is not what the manifest says, in version, recordSet; --card writes it again, with what you"
        in capfd.readouterr().out
    )
    assert checked(data, "--card") == ""
    assert described(data) == found
    edit(data, identifier=f"urn:stepfeed:{first.digest}")
    checked(data)
    assert "croissant.json: describes another data set or version" in capfd.readouterr().out
    (data / naming.CROISSANT).write_text("{}")
    checked(data)
    assert "croissant.json: is not one that beam_jobs.convert wrote; move it elsewhere" in capfd.readouterr().out


def test_one_that_is_gone_is_written_by_the_same_conversion_and_by_the_card(tmp_path, capfd):
    data = grown(tmp_path, range(4))
    whole = described(data)
    del whole["prov:wasAssociatedWith"]  # of the conversion alone
    (data / naming.CROISSANT).unlink()
    assert checked(data, "--deep", "--card") == ""
    assert described(data) == whole
    (data / naming.CROISSANT).unlink()
    again = ["--dataset=image_folder", f"--source={tmp_path / 'photos0'}", f"--data_dir={data}"]
    convert.main(again)
    assert "croissant.json was missing or out of date, and is written again" in capfd.readouterr().out
    assert described(data) == whole
    convert.main(again)
    assert "croissant.json" not in capfd.readouterr().out


def test_the_validator_of_mlcommons_takes_it(digits, tmp_path):
    pytest.importorskip("mlcroissant", reason="needs mlcroissant: pip install '.[dev]'")
    foreign.annotated(tmp_path, {"train": 4})
    placed = "image:image,label:label,mask:mask,boxes:image/object/bbox,points:points,box_labels:classes"
    index.main([str(tmp_path), f"--feature_map={placed}"])
    assert checked(tmp_path, "--card") == ""
    for folder in (digits, tmp_path):
        done = forked.fresh(["-m", "mlcroissant.scripts.cli", "validate", f"--jsonld={folder / naming.CROISSANT}"])
        assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr
