"""The audit of a mixture: that of each source, in the order in which it is fed."""

import numpy as np
import pytest

from pipeline import input_fn, order_spec
from pipeline.audit import __main__ as audit
from pipeline.audit.contract import Contract
from pipeline.errors import DataError, UsageError
from pipeline.order.key_log import SourceLogs
from pipeline.order.shares import rows_in_blocks
from pipeline.request import Request
from pipeline.resolved import resolve_all
from tests.helpers.datasets import edit_manifest, write_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("made")
    write_dataset(path / "a", (20, 0, 18, 15))
    write_dataset(path / "b", (33, 27))
    return path


def audited(capsys, *flags):
    audit.main(list(flags))
    return capsys.readouterr().out


def test_what_is_proved_is_the_order_of_the_flags(folder, capsys):
    """Of a single source: what each flag changes in the answer."""
    plain = audited(capsys, f"{folder}/a", "--global_batch_size=12", "--workers=2")
    assert "proof holds: each of 53 records once" in plain
    for flags, said in (
        (["--evaluation"], "order: evaluation"),
        (["--epoch=3"], "epoch 3,"),
        (["--seed=7"], "seed 7,"),
        (["--split=train[:40]"], "proof holds: each of 40 records"),
        (["--remainder=drop"], "proof holds: 48 of 53 records"),
        (["--streams=4"], "4 streams of 3 rows"),
        (["--shuffle_bytes=4000"], "3 windows each, of 1 to 2 records"),
        (["--shuffle_bytes=4000", "--resize=8x8"], "5 windows each, of 0 to 1 records"),
        (["--replicas=4"], "proof holds: each of 53 records once per epoch, by one replica; 5 full steps on each of 4"),
    ):
        assert said not in plain
        assert said in audited(capsys, f"{folder}/a", "--global_batch_size=12", "--workers=2", *flags)
    many = (f"{folder}/a", "--global_batch_size=60", "--workers=60")
    assert [f"\n{worker} " in audited(capsys, *many) for worker in (0, 30, 59)] == [True, False, True]
    assert [f"\n{worker} " in audited(capsys, *many, "--list_all") for worker in (0, 30, 59)] == [True] * 3


def test_images_of_several_sizes_need_the_augmentation_of_the_run(tmp_path, capsys):
    write_dataset(tmp_path, (20, 33))
    edit_manifest(tmp_path, lambda content: content["features"]["image"].update(encoding="png", shape=[None, None, 3]))
    edit_manifest(tmp_path, lambda content: content["splits"]["train"].update(image_sizes={"8x6": 53}))
    flags = (str(tmp_path), "--global_batch_size=12")
    with pytest.raises(UsageError, match="resize"):
        audited(capsys, *flags)
    assert "proof holds: each of 53 records" in audited(capsys, *flags, "--augment=random_crop(size=4)")


def test_each_source_is_proved(folder, capsys):
    audit.main([f"{folder}/a=2,{folder}/b:train[:40]=1", "--global_batch_size=36", "--workers=2", "--replicas=4"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("source ")] == [f"source 0: {folder}/a", f"source 1: {folder}/b"]
    spec = order_spec([(folder / "a", 2), (f"{folder}/b:train[:40]", 1)], global_batch_size=36, training=True)
    for part in spec.parts:
        assert any(
            f"seed {part.seed}, epoch 0, global batch {part.global_batch_size}, 1 stream" in line for line in lines
        )
    proofs = [line for line in lines if line.startswith("proof holds")]
    assert [proof.partition(" once")[0] for proof in proofs] == [f"proof holds: each of {n} records" for n in (53, 40)]


def test_a_source_has_its_own_view(folder, capsys):
    audit.main([f"{folder}/a=2,{folder}/b=1", "--global_batch_size=36", f"--limit={folder}/b: 20"])
    out = capsys.readouterr().out
    assert "proof holds: each of 53 records once" in out
    assert [line for line in out.splitlines() if line.startswith("view: ")] == ["view: 20 rows per epoch; limit: 20"]


def test_the_contract_says_what_is_fed(folder):
    mixture = [(folder / "a", 2), (f"{folder}/b:train[:40]", 1)]
    options = {"global_batch_size": 36, "training": True, "streams": 4, "shuffle_bytes": 7000}
    contracts = [Contract.of(part) for part in resolve_all(Request(mixture, **options)).parts]
    for step, (_, _, weights, ids) in enumerate(input_fn(mixture, **options, record_ids=True).take(8)):
        for number, rows in enumerate((slice(0, 2), slice(2, 3))):
            records, real = contracts[number].batch(step)
            assert (ids.numpy().reshape(12, 3)[:, rows].reshape(-1) - 53 * number).tolist() == records.tolist()
            assert (weights.numpy().reshape(12, 3)[:, rows].reshape(-1) == 1).tolist() == real.tolist()


@pytest.mark.parametrize(
    ("flags", "facts"),
    [(["--replicas=9"], "a:train 24, .*b:train 12 .* 9 replicas"), (["--evaluation"], "--evaluation")],
)
def test_wrong_flags(folder, flags, facts):
    with pytest.raises(UsageError, match=facts):
        audit.main([f"{folder}/a=2,{folder}/b=1", "--global_batch_size=36", *flags])


@pytest.mark.parametrize(
    ("flag", "facts"),
    [
        ("--png=who.jpg", r"^--png=who\.jpg: the file's name must end in \.png$"),
        ("--epoch=-1", r"^--epoch=-1: must be 0 or more, and less than 2\^62$"),
        (f"--epoch={1 << 62}", f"^--epoch={1 << 62}: must be 0 or more"),
    ],
)
def test_flags_that_cannot_be_are_refused_before_anything_is_read(flag, facts):
    with pytest.raises(UsageError, match=facts):
        audit.main(["/nowhere", "--global_batch_size=36", flag])


def test_each_source_has_its_picture_its_logs_and_its_comparison(folder, tmp_path, capsys):
    mixture = [(folder / "a", 2), (folder / "b", 1)]
    options = {"global_batch_size": 36, "training": True}
    spec = order_spec(mixture, **options)
    contracts = [Contract.of(part) for part in resolve_all(Request(mixture, **options)).parts]
    for worker in (0, 1):
        with SourceLogs(str(tmp_path / "logs"), spec, worker, 2, 2, 0) as log:
            for step in range(2):
                rows = [contract.batch(step) for contract in contracts]
                mine = slice(worker * 18, worker * 18 + 18)
                keys = np.empty(36, object)
                for place, (records, _) in zip(rows_in_blocks([24, 12]), rows, strict=True):
                    keys[place] = [f"train#{record:05d}" for record in records]
                log.append(step, worker, list(keys[mine]), [1.0] * 18)
    flags = [f"--observed={tmp_path}/logs", f"--png={tmp_path}/who.png", "--against_workers=3"]
    audit.main([f"{folder}/a=2,{folder}/b=1", "--global_batch_size=36", *flags])
    out = capsys.readouterr().out
    assert out.count("; the run saw just that\n") == 2
    assert out.count("every global batch is the same on 3 workers, 3 replicas as on 2 workers, 2 replicas") == 2
    # Three workers share one stream of 53 records, each with 8 of 24 rows.
    line = next(line for line in out.splitlines() if line.startswith("3 workers, 3 replicas "))
    assert line.split()[4:7] == ["8", "1", "3"]
    for number in (0, 1):
        assert (tmp_path / f"who-{number}.png").read_bytes().startswith(b"\x89PNG")
        assert f"{tmp_path}/who-{number}.png: which worker reads what\n" in out
    with pytest.raises(DataError, match=r"--png=/nowhere/who\.png: cannot be written: No such file"):
        audit.main([f"{folder}/a", "--global_batch_size=36", "--png=/nowhere/who.png"])
