"""The Secrets Store CSI Driver's side of the provider interface: how it asks, and how it reads the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

TOKENS = "csi.storage.k8s.io/serviceAccount.tokens"
TOKEN = "header.pod-token.signature"
DRIVERS_PERMISSION = "420"
"""0644, as its code has it."""


def field_of(number: int, content: bytes | str) -> bytes:
    """One length-delimited field."""
    encoded = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + _varint(value >> 7)


def fields_of(body: bytes) -> list[tuple[int, bytes | int]]:
    """The fields of a message whose fields are texts, bytes and numbers."""
    found: list[tuple[int, bytes | int]] = []
    while body:
        key, body = _taken(body)
        value, body = _taken(body)
        if key & 7 == 0:
            found.append((key >> 3, value))
        else:
            assert key & 7 == 2
            assert value <= len(body)
            found.append((key >> 3, body[:value]))
            body = body[value:]
    return found


def _taken(body: bytes) -> tuple[int, bytes]:
    value = 0
    for index, byte in enumerate(body):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, body[index + 1 :]
    raise AssertionError("an unfinished number")


def pod_tokens(token: str = TOKEN, audience: str = "nodewarden-broker") -> str:
    """The kubelet's text with a token for each audience of the CSIDriver."""
    return json.dumps({audience: {"token": token, "expirationTimestamp": "2027-01-01T00:00:00Z"}})


@dataclass
class Ask:
    """A mount request, by default one that a provider answers."""

    attributes: dict[str, Any] = field(
        default_factory=lambda: {
            "secrets": "llm/key",
            "secretProviderClass": "llm",
            "csi.storage.k8s.io/pod.name": "llm-0",
            "csi.storage.k8s.io/pod.namespace": "ml",
            "csi.storage.k8s.io/pod.uid": "5c0d",
            "csi.storage.k8s.io/serviceAccount.name": "llm",
            "csi.storage.k8s.io/ephemeral": "true",
        }
    )
    secrets: Any = field(default_factory=lambda: {TOKENS: pod_tokens()})
    permission: str = DRIVERS_PERMISSION

    def body(self) -> bytes:
        texts = (json.dumps(self.attributes), json.dumps(self.secrets), "/var/lib/kubelet/pods/5c0d/v", self.permission)
        asked = b"".join(field_of(number, text) for number, text in enumerate(texts, 1))
        return asked + field_of(5, field_of(1, "llm/key") + field_of(2, "an older version"))


def ask(permission: str = DRIVERS_PERMISSION, **parameters: str | None) -> Ask:
    """A mount with other parameters; one that is None is left out."""
    made = Ask(permission=permission)
    given = {**made.attributes, **parameters}
    made.attributes = {name: value for name, value in given.items() if value is not None}
    return made


@dataclass(frozen=True)
class Mounted:
    """A volume as the driver would write it."""

    files: Mapping[str, bytes]
    modes: Mapping[str, int]
    versions: Mapping[str, str]


def read_mount_response(body: bytes) -> Mounted:
    files: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    versions: dict[str, str] = {}
    for number, part in fields_of(body):
        assert isinstance(part, bytes)
        # proto3 may leave out what is empty or zero.
        inner: dict[int, Any] = {1: b"", 2: b"" if number == 1 else 0, 3: b"", **dict(fields_of(part))}
        assert number in (1, 3)
        name = inner[1].decode()
        if number == 1:
            versions[name] = inner[2].decode()
        else:
            files[name], modes[name] = inner[3], inner[2]
    return Mounted(files, modes, versions)


class Driver:
    """A client at a provider's socket."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def _call(self, method: str, body: bytes) -> bytes:
        call = self._channel.unary_unary(f"/v1alpha1.CSIDriverProvider/{method}")
        answer: bytes = call(body, timeout=60, wait_for_ready=True)
        return answer

    def version(self) -> tuple[str, ...]:
        return tuple(text.decode() for _, text in fields_of(self._call("Version", field_of(1, "v1alpha1"))))  # type: ignore[union-attr]  # - texts

    def mount(self, asked: Ask | bytes) -> Mounted:
        return read_mount_response(self._call("Mount", asked if isinstance(asked, bytes) else asked.body()))

    def refusal(self, asked: Ask | bytes) -> tuple[grpc.StatusCode, str]:
        """Status and words of a mount that is refused."""
        try:
            mounted = self.mount(asked)
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"mounted {sorted(mounted.files)}")


@contextmanager
def driver(socket: Path) -> Iterator[Driver]:
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        yield Driver(channel)
