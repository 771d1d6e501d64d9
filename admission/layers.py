"""A mapping that many readers share while one writer goes on: a large base that never changes, and what changed since.

Copying 20,000 pods for each change of one costs a good part of a millisecond; copying the last few hundred changes does
not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar, overload

MAX_CHANGES = 512
"""So many changes lie over a base before a new base is made."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
OtherT = TypeVar("OtherT")


class Layers(Mapping[KeyT, ValueT]):
    """One moment of a `LayeredStore`; nobody changes it any more. A change to None stands for a key that went."""

    __slots__ = ("_base", "_changes")

    def __init__(self, base: dict[KeyT, ValueT], changes: dict[KeyT, ValueT | None]) -> None:
        self._base, self._changes = base, changes

    def __getitem__(self, key: KeyT) -> ValueT:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: KeyT, default: None = None, /) -> ValueT | None: ...

    @overload
    def get(self, key: KeyT, default: ValueT | OtherT, /) -> ValueT | OtherT: ...

    def get(self, key: KeyT, default: object = None, /) -> object:
        value = self._changes[key] if key in self._changes else self._base.get(key)
        return default if value is None else value

    def __iter__(self) -> Iterator[KeyT]:
        changes = self._changes
        yield from (key for key in self._base if key not in changes)
        yield from (key for key, value in changes.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class LayeredStore(Generic[KeyT, ValueT]):
    """The writer's side; its caller keeps threads apart."""

    def __init__(self) -> None:
        self._base: dict[KeyT, ValueT] = {}
        self._changes: dict[KeyT, ValueT | None] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, key: KeyT) -> ValueT | None:
        return self._changes[key] if key in self._changes else self._base.get(key)

    def put(self, key: KeyT, value: ValueT | None) -> bool:
        """Whether anything changed: `key` has `value` now, or is gone where that is None."""
        before = self.get(key)
        if before == value:
            return False
        self._count += (value is not None) - (before is not None)
        self._changes[key] = value
        return True

    def replace(self, values: dict[KeyT, ValueT]) -> bool:
        """Whether anything changed: just `values` are there now. The dictionary is ours from here on."""
        if len(values) == self._count and all(self.get(key) == value for key, value in values.items()):
            return False
        self._base, self._changes, self._count = values, {}, len(values)
        return True

    def moment(self) -> Layers[KeyT, ValueT]:
        """What is there now, for as long as anyone likes to look at it."""
        if len(self._changes) > MAX_CHANGES:
            # A dictionary is copied as a block; to make it anew, key by key, would hold decisions up for milliseconds.
            base = self._base.copy()
            for key, value in self._changes.items():
                if value is None:
                    base.pop(key, None)
                else:
                    base[key] = value
            self._base, self._changes = base, {}
        return Layers(self._base, self._changes.copy())
