"""The audit of draws, and of a second epoch: planted faults that leave each epoch right by itself are found."""

import re

import pytest

from pipeline.audit import __main__ as audit
from pipeline.augmentation.base import UserAugmented
from pipeline.batch import batches
from pipeline.batch.batches import Batches
from pipeline.errors import DataError
from pipeline.order.feed import Feed
from tests.helpers.datasets import Kind, write_dataset

FLAGS = ("--global_batch_size=12", "--workers=2")


def audited(folder, *flags):
    audit.main([str(folder), *FLAGS, *flags])


@pytest.fixture
def data(tmp_path):
    write_dataset(tmp_path, (30, 0, 25, 44))
    return tmp_path


def of_recipes(monkeypatch, change):
    """Plants the keys that `change` returns where a recipe draws, but not where a user's function does."""
    made = batches.augmenter_of

    def planted(resolved, recipe, by_passes, keys_of, images_of):
        def keys(epoch, records):
            return change(epoch, records, keys_of)

        return made(resolved, recipe, by_passes, keys_of if isinstance(recipe, UserAugmented) else keys, images_of)

    monkeypatch.setattr(batches, "augmenter_of", planted)


@pytest.mark.parametrize(
    ("flags", "again"),
    [pytest.param((), "99 records counted", marks=pytest.mark.slow), (("--epoch=5",), "99 records counted")],
)
def test_two_epochs_are_replayed_and_named(data, capsys, flags, again):
    audited(data, *flags)
    out = capsys.readouterr().out
    first = 5 if flags else 0
    assert f"every row of epoch {first + 1} holds the record of the contract, too\n" in out
    assert again in out.partition(f"of epoch {first + 1} holds")[2]
    assert out.endswith(f"; epochs {first} and {first + 1} replayed\n")


@pytest.mark.parametrize(
    "flags",
    [pytest.param((), marks=pytest.mark.slow), ("--shuffle_bytes=2000", "--streams=4")],
    ids=["in memory", "windows"],
)
def test_an_order_that_repeats_in_every_epoch_is_found(data, monkeypatch, flags):
    plan = Feed.plan
    monkeypatch.setattr(Feed, "plan", lambda feed, epoch, window: plan(feed, epoch * 0, window))
    with pytest.raises(DataError, match=r"every row of epoch 1 holds .*: step 0 of the epoch, row 0, "):
        audited(data, *flags)


def test_an_epoch_too_large_to_replay_twice_is_replayed_in_parts(data, monkeypatch, capsys):
    from pipeline.audit import proof

    monkeypatch.setattr(proof, "BUDGET", 30_000)  # the epoch takes 16,384 + 198 records
    audited(data)
    assert capsys.readouterr().out.endswith("; epoch 0 replayed, and parts of epoch 1\n")
    plan = Feed.plan
    monkeypatch.setattr(Feed, "plan", lambda feed, epoch, window: plan(feed, epoch * 0, window))
    with pytest.raises(DataError, match="every row of epoch 1 holds "):
        audited(data)


@pytest.mark.parametrize(
    ("kind", "flags", "looks"),
    [
        pytest.param(
            Kind(),
            ["--augment=pad_crop_flip(pad=2) | mixup"],
            r"\(pad_crop_flip\(pad=2\)\)",
            marks=pytest.mark.slow,
        ),
        (Kind("png", varied=True), ["--augment=random_crop(size=6)", "--epoch=3"], r"\(random_crop\(size=6\)\)"),
        pytest.param(
            Kind(),
            ["--augment=cutout(size=3)", "--shuffle_bytes=2000", "--streams=2"],
            r"\(cutout\(size=3\)\)",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["mixed", "cropped", "windows"],
)
def test_augmented_rows_differ_between_epochs_and_are_the_same_again(tmp_path, capsys, kind, flags, looks):
    write_dataset(tmp_path, (11, 13), kind=kind)
    audited(tmp_path, "--content", *flags)
    lines = capsys.readouterr().out.splitlines()
    claim = next(n for n, line in enumerate(lines) if "augmented differently" in line)
    assert re.search(looks, lines[claim])
    changed = int(
        re.fullmatch(r" *24 records of epochs \d and \d compared: (\d+) look different; .*", lines[claim + 1])[1]
    )
    assert changed >= 20
    assert re.search(r"^ +48 keys compared, of epochs (0 and 1|3 and 4)$", "\n".join(lines), re.M)


@pytest.mark.slow
def test_rows_without_draws_are_no_fault(data, capsys):
    audited(data, "--content", "--augment=pad_crop_flip(pad=0, flip=False)")
    assert "99 records of epochs 0 and 1 compared: 0 look different" in capsys.readouterr().out
    audited(data, "--content", "--augment=none")
    assert "augmented" not in capsys.readouterr().out.splitlines()[-1]


def test_draws_that_repeat_in_every_epoch_are_found_by_their_keys(data, monkeypatch):
    keys_of = Batches.keys_of
    monkeypatch.setattr(Batches, "keys_of", lambda batches, epoch, records: keys_of(batches, epoch * 0, records))
    with pytest.raises(
        DataError, match=r"made from the key of .*: step 9, row 0 .*: its key is [0-9a-f]{16}, and must"
    ):
        audited(data, "--content", "--augment=cutout(size=3)")


@pytest.mark.slow
def test_rows_that_repeat_in_every_epoch_are_found_where_the_keys_are_right(data, monkeypatch):
    of_recipes(monkeypatch, lambda epoch, records, keys_of: keys_of(epoch * 0, records))
    with pytest.raises(
        DataError, match="99 records: augmented the same in epoch 0 as in 1 and 11 more, .* by 12 of 12 other seeds$"
    ):
        audited(data, "--content", "--augment=cutout(size=3)")


@pytest.mark.slow
def test_rows_that_depend_on_their_batch_are_found(data, monkeypatch):
    of_recipes(monkeypatch, lambda epoch, records, keys_of: keys_of(epoch, records + records.shape[-1]))
    with pytest.raises(DataError, match=r"epoch 0, record \d+ \(row \d+ of train-.*\): is augmented in two ways"):
        audited(data, "--content", "--augment=pad_crop_flip(pad=2)")


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["flip", "flip(prob=0.3) | cutout(size=3)", "pad_crop_flip(pad=2)", "pad_crop_flip(flip=False)"]
)
def test_recipes_that_are_restated_are_so_in_both_epochs(data, capsys, recipe):
    audited(data, "--content", f"--augment={recipe}")
    name = recipe.partition("(")[0]
    assert (
        f"; {name} restated for 99 rows of epoch 0; {name} restated for 99 rows of epoch 1" in capsys.readouterr().out
    )


@pytest.mark.slow
def test_one_draw_of_several_that_repeats_is_found(data, monkeypatch):
    """The crops are drawn anew, so that the rows differ between epochs; which are mirrored is not."""
    of_recipes(monkeypatch, lambda epoch, records, keys_of: keys_of(epoch * 0, records))
    with pytest.raises(DataError, match=r"epoch 1, record \d+ .*: pad_crop_flip makes another row of it than its key"):
        audited(data, "--content", "--augment=pad_crop_flip(pad=2)")
