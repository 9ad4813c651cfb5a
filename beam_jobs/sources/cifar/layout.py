"""The published layouts of CIFAR-10 and CIFAR-100: their files, and the names of the classes."""

from __future__ import annotations

import dataclasses

SIDE, CHANNELS = 32, 3
PIXELS = CHANNELS * SIDE * SIDE  # 3,072 bytes: 1,024 red, 1,024 green, 1,024 blue


@dataclasses.dataclass(frozen=True)
class Layout:
    """One published form of a data set.

    Attributes:
      folder: its folder in the archive.
      files: {split: its files, in order}.
      is_pickled: whether it is Python's version; else it is the binary one.
    """

    folder: str
    files: dict[str, tuple[str, ...]]
    is_pickled: bool

    @property
    def names(self) -> tuple[str, ...]:
        """All files."""
        return tuple(name for names in self.files.values() for name in names)


@dataclasses.dataclass(frozen=True)
class Label:
    """One label of an image: a byte of a binary record, in this order, or a list of a pickle.

    Attributes:
      feature: its name in our examples.
      key: its name in the pickles.
      class_names: one per value.
    """

    feature: str
    key: str
    class_names: tuple[str, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_TEN = _words("airplane automobile bird cat deer dog frog horse ship truck")
_COARSE = _words(
    """aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2"""
)
_FINE = _words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
)
LABELS = {
    "cifar10": (Label("label", "labels", _TEN),),
    "cifar100": (Label("coarse_label", "coarse_labels", _COARSE), Label("label", "fine_labels", _FINE)),
}
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
LAYOUTS = {
    "cifar10": (
        Layout(
            "cifar-10-batches-bin", {"train": tuple(f"{n}.bin" for n in _BATCHES), "test": ("test_batch.bin",)}, False
        ),
        Layout("cifar-10-batches-py", {"train": _BATCHES, "test": ("test_batch",)}, True),
    ),
    "cifar100": (
        Layout("cifar-100-binary", {"train": ("train.bin",), "test": ("test.bin",)}, False),
        Layout("cifar-100-python", {"train": ("train",), "test": ("test",)}, True),
    ),
}
