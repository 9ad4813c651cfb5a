"""Registries of things by name: each is registered where it is written, so that adding one touches no other file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Generic, TypeVar

_Thing = TypeVar("_Thing")
_Defined = TypeVar("_Defined")


class Registry(Mapping[str, _Thing], Generic[_Thing]):
    """A mapping from names to things, which fills itself from the modules of a package on first use.

        MODELS: Registry[Model] = Registry("trainer.models", Model)

        @MODELS.named("lenet", epochs=10)
        def lenet(...): ...  # MODELS["lenet"] is Model(lenet, epochs=10)

    Flags are checked against the names, so the modules are imported before TensorFlow is needed: at the top they import
    it from `pipeline.lazily`, or import nothing heavy.

    Args:
      package: full name of the package whose modules register things, or of a single module.
      kind: function that makes a thing from the decorated object and the decorator's keywords; None to register the
        object itself.
      besides: modules in the package that register nothing and would load much.
    """

    def __init__(self, package: str, kind: Callable[..., _Thing] | None = None, besides: Collection[str] = ()) -> None:
        self._package, self._kind, self._besides = package, kind, besides
        self._things: dict[str, _Thing] = {}
        self._places: dict[str, tuple[Any, Any]] = {}  # module and name that define each thing
        self._is_complete = False

    def named(self, *names: str, **facts: Any) -> Callable[[_Defined], _Defined]:
        """Returns a decorator that registers a class or function, and returns it unchanged.

        Raises:
          ValueError: something else has one of the names. (A module that is reloaded replaces its own registrations.)
        """

        def register(defined: _Defined) -> _Defined:
            thing: Any = self._kind(defined, **facts) if self._kind else defined
            place = getattr(defined, "__module__", None), getattr(defined, "__qualname__", defined)
            for name in names:
                if self._places.setdefault(name, place) != place:
                    raise ValueError(f"{self._package}: {name!r} is registered twice")
                self._things[name] = thing
            return defined

        return register

    def __getitem__(self, name: str) -> _Thing:
        return self._complete()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._complete())

    def __len__(self) -> int:
        return len(self._complete())

    def _complete(self) -> Mapping[str, _Thing]:
        """Returns all things, after importing the modules that register them."""
        if not self._is_complete:
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                if module.name not in self._besides:
                    importlib.import_module(f"{self._package}.{module.name}")
            # Otherwise help and errors would show the order in which this process happened to import them.
            self._things = dict(sorted(self._things.items(), key=lambda named: str(self._places[named[0]][0])))
            self._is_complete = True
        return self._things
