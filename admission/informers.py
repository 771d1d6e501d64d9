"""Caches of collections of the API server: listed once, then followed by a watch that proves that it lives.

A cache is what it was when it last lived: who reads it asks `alive_at` how long ago that was, by the monotonic clock.
Only parsed fields are kept. A watch is re-opened every few seconds (`KubeClient.watch`), and its opening, each event,
each bookmark and its orderly end are proofs of life.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import structlog

from admission.kube import EventType, KubeClient, KubeGone
from admission.layers import LayeredStore
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Failure, Refusal, Unavailable

MIN_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 5.0
MAX_OBJECTS = 200_000
"""Kubernetes is tested to 150,000 pods a cluster."""

ValueT = TypeVar("ValueT")
Key = tuple[str, str]
"""Namespace ("" for cluster-scoped objects) and name."""


class Informer(Generic[ValueT]):
    """The objects at `path`, each as `parse` reads it, or as the failure for which `parse` refused it.

    `changed` is called after anything changed in what we keep of the objects (heartbeats of nodes and the like change
    nothing), and `on_change` for each such object with its key, what it was and what it is: None where it is not there
    or cannot be read. Both in the informer's thread, or in that of whoever calls `told`.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        parse: Callable[[Mapping[str, Any]], ValueT],
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Key, ValueT | None, ValueT | None], None] | None = None,
    ) -> None:
        self.path = path
        self._client, self._parse, self._changed, self._clock = client, parse, changed, clock
        self._on_change = on_change
        self._lock = threading.Lock()
        self._objects: LayeredStore[Key, ValueT | Failure] = LayeredStore()
        self._version = 0
        self._alive_at: float | None = None
        self._stop = threading.Event()
        self._again = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Lists and watches in a thread of its own, until `stop`."""
        self._thread = threading.Thread(target=self._run, name=f"informer {self.path}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends soon; does not wait for a watch that is silent."""
        self._stop.set()

    def read_again(self) -> None:
        """Lists anew once the present watch ends (within seconds): for when `parse` would now answer otherwise."""
        self._again.set()

    @property
    def alive_at(self) -> float | None:
        """When the cache last was known to be complete, by the monotonic clock; None before the first list."""
        return self._alive_at

    @property
    def version(self) -> int:
        """Rises with every change."""
        return self._version

    def moment(self) -> tuple[int, Mapping[Key, ValueT | Failure]]:
        """The version, and the objects at that version, which nobody changes any more."""
        with self._lock:
            return self._version, self._objects.moment()

    def runs(self) -> bool:
        """Whether its thread lives; that the API server is away ends it not."""
        return self._thread is not None and self._thread.is_alive()

    def get(self, name: str, namespace: str = "") -> ValueT | None:
        """The object, if it is there and can be read."""
        with self._lock:
            return _readable(self._objects.get((namespace, name)))

    def values(self) -> list[ValueT]:
        """All objects that can be read, of one moment."""
        return [value for value in self.moment()[1].values() if not isinstance(value, Failure)]

    def names(self) -> list[str]:
        """The names of all objects, whether they can be read or not."""
        return [name for _, name in self.moment()[1]]

    def unreadable(self) -> frozenset[str]:
        """The names of the objects that are there and cannot be read."""
        return frozenset(key[1] for key, value in self.moment()[1].items() if isinstance(value, Failure))

    def told(self, fields: Mapping[str, Any]) -> None:
        """Takes in what a write of our own returned: the watch says it later, and the work would be done twice."""
        if "name" in (fields.get("metadata") or {}):
            self._apply("MODIFIED", fields)

    def _run(self) -> None:
        version, backoff = "", MIN_BACKOFF_SECONDS
        while not self._stop.is_set():
            try:
                if not version or self._again.is_set():
                    self._again.clear()
                    version = self._list()
                version = self._watch(version)
                backoff = MIN_BACKOFF_SECONDS
            except KubeGone:
                # What was missed cannot be told: the cache ages until the new list is complete.
                version = ""
                self._stop.wait(MIN_BACKOFF_SECONDS)
            except Refusal as refusal:
                structlog.get_logger().warning("watch_broken", path=self.path, reason=str(refusal))
                self._stop.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, hides nothing
                backoff = min(backoff * 2, MAX_BACKOFF_SECONDS)
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would be a cache that never ages out
                structlog.get_logger().error("informer_failed", path=self.path, error=type(error).__name__)
                version = ""
                self._stop.wait(MAX_BACKOFF_SECONDS)

    def _list(self) -> str:
        began = self._clock()
        listed: dict[Key, ValueT | Failure] = {}
        version = ""
        for page in self._client.list_pages(self.path):
            for fields in page["items"]:
                key, value = self._read(fields)
                listed[key] = value
            if len(listed) > MAX_OBJECTS:
                seen = f"more than {MAX_OBJECTS} objects"
                raise Unavailable(ReasonCode.KUBERNETES_UNREACHABLE, self.path, seen)
            version = str((page.get("metadata") or {}).get("resourceVersion") or "")
        if not version:
            raise Unavailable(ReasonCode.KUBERNETES_UNREACHABLE, self.path, "a list without resourceVersion")
        with self._lock:
            first = self._alive_at is None
            before = self._objects.moment()
            changed = self._objects.replace(listed) or first
            if changed:
                self._version += 1
            self._alive_at = began
        if changed:
            self._changed()
            for key in before.keys() | listed.keys() if self._on_change is not None else ():
                self._tell(key, before.get(key), listed.get(key))
        return version

    def _watch(self, version: str) -> str:
        newest = version

        def on_event(kind: EventType, fields: Mapping[str, Any]) -> None:
            nonlocal newest
            if kind != "BOOKMARK":
                self._apply(kind, fields)
            newest = str((fields.get("metadata") or {}).get("resourceVersion") or newest)
            self._lived()

        try:
            self._client.watch(self.path, version, on_event, on_open=self._lived, stopped=self._stop.is_set)
        except KubeGone:
            raise
        except Refusal:
            if newest == version:
                raise
            # Everything up to `newest` was told: go on from there.
            structlog.get_logger().info("watch_resumed", path=self.path)
            return newest
        if not self._stop.is_set():
            self._lived()
        return newest

    def _lived(self) -> None:
        self._alive_at = self._clock()

    def _apply(self, kind: EventType, fields: Mapping[str, Any]) -> None:
        key, value = self._read(fields)
        self._put(key, None if kind == "DELETED" else value)

    def _put(self, key: Key, value: ValueT | Failure | None) -> None:
        with self._lock:
            before = self._objects.get(key)
            if value is not None and before is None and len(self._objects) >= MAX_OBJECTS:
                # The list that follows finds them too many as well, and the cache ages.
                raise KubeGone(410, "Full", self.path, f"more than {MAX_OBJECTS} objects")
            changed = self._objects.put(key, value)
            if changed:
                self._version += 1
        if changed:
            self._changed()
            self._tell(key, before, value)

    def _tell(self, key: Key, before: ValueT | Failure | None, after: ValueT | Failure | None) -> None:
        if self._on_change is None:
            return
        old, new = _readable(before), _readable(after)
        if old != new:
            self._on_change(key, old, new)

    def _read(self, fields: Mapping[str, Any]) -> tuple[Key, ValueT | Failure]:
        metadata = fields.get("metadata") or {}
        key = (str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))
        try:
            return key, self._parse(fields)
        except Refusal as refusal:
            structlog.get_logger().warning("object_refused", path=self.path, name=key[1], reason=str(refusal))
            return key, refusal.failure


def _readable(value: ValueT | Failure | None) -> ValueT | None:
    return None if isinstance(value, Failure) else value
