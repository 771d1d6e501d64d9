"""The part of an API server that keeps SecretReleases, over real TLS: versions, preconditions, watches."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from admission.cluster_leases import RELEASES
from tests.admission.scripted_api import Asked, Said, a_list, a_status

Fields = dict[str, Any]


class Releases:
    """Objects by name. `refuse` answers a method in place of the server; `silent` watches tell nothing new."""

    def __init__(self) -> None:
        self.items: dict[str, Fields] = {}
        self.refuse: dict[str, Said] = {}
        self.silent = False
        self.closed = False
        self._version = 10
        self._log: list[tuple[int, str, Fields]] = []
        self._told = threading.Condition()

    def __call__(self, asked: Asked) -> Said:
        if asked.watching:
            return Said(parts=self._events(int(asked.query["resourceVersion"])))
        if asked.method in self.refuse:
            return self.refuse[asked.method]
        with self._told:
            name = asked.path.removeprefix(RELEASES).strip("/").removesuffix("/status")
            if asked.method == "POST":
                return self._create(asked.body)
            if not name:
                return a_list(*json.loads(json.dumps(list(self.items.values()))), version=str(self._version))
            if name not in self.items:
                return Said(a_status(404, "NotFound"), 404)
            if asked.method == "GET":
                return Said(json.loads(json.dumps(self.items[name])))
            return self._change(asked, name)

    def order(self, name: str) -> None:
        """The controller's order to revoke."""
        asked = {"type": "RevocationRequested", "status": "True", "reason": "NodeFell", "message": "it fell"}
        with self._told:
            conditions = [*self.items[name].get("status", {}).get("conditions", []), asked]
            self._store(name, {**self.items[name], "status": {"conditions": conditions}}, "MODIFIED")

    def put(self, fields: Fields) -> None:
        """An object that somebody else made."""
        with self._told:
            self._store(fields["metadata"]["name"], fields, "ADDED")

    def close(self) -> None:
        """Every watch ends."""
        with self._told:
            self.closed = True
            self._told.notify_all()

    def _create(self, body: Fields) -> Said:
        name = body["metadata"]["name"]
        if name in self.items:
            return Said(a_status(409, "AlreadyExists"), 409)
        metadata = {**body["metadata"], "uid": str(uuid4())}
        return Said(self._store(name, {**body, "metadata": metadata}, "ADDED"), 201)

    def _change(self, asked: Asked, name: str) -> Said:
        metadata = self.items[name]["metadata"]
        wanted = asked.body["preconditions"] if asked.method == "DELETE" else asked.body["metadata"]
        if any(metadata[field] != wanted[field] for field in ("uid", "resourceVersion")):
            return Said(a_status(409, "Conflict"), 409)
        if asked.method == "DELETE":
            self._tell("DELETED", self.items.pop(name))
            return Said(a_status(200, "Success"))
        status = {**self.items[name].get("status", {}), **asked.body["status"]}
        return Said(self._store(name, {**self.items[name], "status": status}, "MODIFIED"))

    def _store(self, name: str, fields: Fields, kind: str) -> Fields:
        self._version += 1
        self.items[name] = {**fields, "metadata": {**fields["metadata"], "resourceVersion": str(self._version)}}
        self._tell(kind, self.items[name])
        return self.items[name]

    def _tell(self, kind: str, fields: Fields) -> None:
        if not self.silent:
            self._log.append((self._version, kind, fields))
        self._told.notify_all()

    def _events(self, since: int) -> Iterator[bytes]:
        end = time.monotonic() + 10
        at = 0
        while not self.closed and time.monotonic() < end:
            with self._told:
                new, at = self._log[at:], len(self._log)
                if not new:
                    self._told.wait(0.1)
            for version, kind, fields in new:
                if version > since:
                    yield json.dumps({"type": kind, "object": fields}).encode() + b"\n"
