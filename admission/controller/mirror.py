"""One collection of the API server, mirrored in memory by list and watch.

After `synced`, the mirror holds what the collection held a moment ago. An object that cannot be read is left out, and
said so in the log: its absence denies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import structlog

from admission.kube import EventType, KubeClient, KubeGone
from verifier.wire.failures import Refusal

RETRY_SECONDS = 1.0
WATCH_SECONDS = 30

ObjectT = TypeVar("ObjectT")
Key = tuple[str, str]
"""Namespace ("" for cluster-scoped kinds) and name."""


class Mirror(Generic[ObjectT]):
    """The objects at `path`, each read by `read`. `run` blocks in a thread of its own; reads are safe from any."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        read: Callable[[Mapping[str, Any]], ObjectT],
        changed: Callable[[Key, ObjectT | None, ObjectT | None], None],
        name: str = "",
    ) -> None:
        """`changed` hears each change, as (key, before, after), in the mirror's thread; `name` picks one object."""
        self._client, self._path, self._read, self._changed = client, path, read, changed
        self._selector = {"fieldSelector": f"metadata.name={name}"} if name else {}
        self.objects: dict[Key, ObjectT] = {}
        self.unreadable: frozenset[Key] = frozenset()
        self._synced = threading.Event()
        self._stop = threading.Event()
        self._version = ""

    def synced(self) -> bool:
        """Whether the collection was listed once."""
        return self._synced.is_set()

    def get(self, name: str, namespace: str = "") -> ObjectT | None:
        return self.objects.get((namespace, name))

    def values(self) -> list[ObjectT]:
        """All objects, of one moment."""
        return list(self.objects.copy().values())

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Mirrors until `stop`."""
        version = ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._listed()
                    self._synced.set()
                self._version = version
                self._client.watch(
                    self._watch_path(), version, self._event, seconds=WATCH_SECONDS, stopped=self._stop.is_set
                )
                version = self._version
            except KubeGone:
                version = ""
            except Refusal as refusal:
                structlog.get_logger().warning("mirror_broken", path=self._path, reason=str(refusal))
                version = ""
                self._stop.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - a mirror that ends silently would show the past for ever
                structlog.get_logger().error("mirror_failed", path=self._path, error=repr(error))
                version = ""
                self._stop.wait(RETRY_SECONDS)

    def _watch_path(self) -> str:
        return f"{self._path}?{urlencode(self._selector)}" if self._selector else self._path

    def _listed(self) -> str:
        found: dict[Key, ObjectT] = {}
        self.unreadable = frozenset()
        version = ""
        for page in self._client.list_pages(self._path, **self._selector):
            for fields in page["items"]:
                read = self._object(fields)
                if read is not None:
                    found[_key(fields)] = read
            version = str(page["metadata"]["resourceVersion"])
        before, self.objects = self.objects, found
        for key in before.keys() | found.keys():
            old, new = before.get(key), found.get(key)
            if old != new:
                self._changed(key, old, new)
        return version

    def told(self, fields: Mapping[str, Any]) -> None:
        """Takes in what a write of our own returned: the watch says it later, and the work would be done twice."""
        if "name" in (fields.get("metadata") or {}):
            self._apply("MODIFIED", fields)

    def _event(self, kind: EventType, fields: Mapping[str, Any]) -> None:
        self._version = str(fields["metadata"]["resourceVersion"])
        if kind != "BOOKMARK":
            self._apply(kind, fields)

    def _apply(self, kind: EventType, fields: Mapping[str, Any]) -> None:
        key = _key(fields)
        new = None if kind == "DELETED" else self._object(fields)
        if kind == "DELETED":
            self.unreadable -= {key}
        old = self.objects.get(key)
        if new is None:
            self.objects.pop(key, None)
        else:
            self.objects[key] = new
        if old != new:
            self._changed(key, old, new)

    def _object(self, fields: Mapping[str, Any]) -> ObjectT | None:
        try:
            read = self._read(fields)
        except Refusal as refusal:
            structlog.get_logger().warning("object_refused", path=self._path, reason=str(refusal))
            self.unreadable |= {_key(fields)}
            return None
        self.unreadable -= {_key(fields)}
        return read


def _key(fields: Mapping[str, Any]) -> Key:
    metadata = fields["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
