"""The messages of the Secrets Store CSI Driver's provider interface, read and written: protobuf, proto3, v1alpha1.

Six small messages, of which one is read: a reader and a writer of our own are shorter than what a code generator leaves
behind, and refuse what the format leaves open. Layout: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

SERVICE = "v1alpha1.CSIDriverProvider"
INTERFACE_VERSION = "v1alpha1"
MAX_REQUEST_BYTES = 256 * 1024
"""A request holds the parameters of one SecretProviderClass and a few tokens of some kilobytes each."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Mapping[int, int] = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_ATTRIBUTES, _SECRETS, _PERMISSION = 1, 2, 4


@dataclass(frozen=True, slots=True)
class MountRequest:
    """What the driver asks for. Three texts of JSON; the first two may hold tokens and are in no repr and no log."""

    claimed_attributes: str
    claimed_secrets: str
    claimed_permission: str

    def __repr__(self) -> str:
        return "MountRequest()"


@dataclass(frozen=True, slots=True)
class File:
    """A file of the volume. The driver writes it on the pod's tmpfs."""

    path: str
    mode: int
    content: bytes

    def __repr__(self) -> str:
        return f"File(path={self.path!r})"


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """What a SecretProviderClassPodStatus shows of a secret: its name, and which of its contents and leases it is."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class MountResponse:
    """The whole volume."""

    versions: tuple[ObjectVersion, ...]
    files: tuple[File, ...]


def read_mount_request(body: bytes) -> MountRequest:
    """The request in `body`. Raises MalformedEvidence `body-too-large`, `mount-request-malformed`.

    Target path and the versions that are mounted already are not looked at: the driver writes the files, and what it
    has does not change what the broker says now. Fields of later versions are passed over, as the format has it.
    """
    if len(body) > MAX_REQUEST_BYTES:
        seen, limit = f"{len(body)} bytes", f"at most {MAX_REQUEST_BYTES} bytes"
        raise MalformedEvidence(ReasonCode.BODY_TOO_LARGE, "mount request", seen, limit)
    texts: dict[int, str] = {}
    for number, value in _fields(body):
        if number not in (_ATTRIBUTES, _SECRETS, _PERMISSION):
            continue
        if number in texts:
            # The format lets the last one win; which of two counts must not be a guess.
            raise _malformed(f"field {number} twice")
        if value is None:
            raise _malformed(f"field {number} is no text")
        try:
            texts[number] = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _malformed(f"field {number} is not UTF-8") from error
    return MountRequest(texts.get(_ATTRIBUTES, ""), texts.get(_SECRETS, ""), texts.get(_PERMISSION, ""))


def write_version_response(runtime_name: str, runtime_version: str) -> bytes:
    """The VersionResponse: the interface's version, our name and our version."""
    texts = enumerate((INTERFACE_VERSION, runtime_name, runtime_version), 1)
    return b"".join(_bytes_field(number, text.encode()) for number, text in texts)


def write_mount_response(response: MountResponse) -> bytes:
    """The MountResponse. Its error field stays empty: a refusal is a gRPC status, which carries words."""
    parts = []
    for version in response.versions:
        parts.append(
            _bytes_field(1, _bytes_field(1, version.name.encode()) + _bytes_field(2, version.version.encode()))
        )
    for file in response.files:
        mode = _varint(2 << 3 | _VARINT) + _varint(file.mode)
        parts.append(_bytes_field(3, _bytes_field(1, file.path.encode()) + mode + _bytes_field(3, file.content)))
    return b"".join(parts)


def _fields(body: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Number and content of each field; None for the content of one that is not length-delimited."""
    position = 0
    while position < len(body):
        key, position = _read_varint(body, position)
        number, kind = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise _malformed("a field number out of range")
        if kind == _VARINT:
            _, position = _read_varint(body, position)
            yield number, None
            continue
        if kind == _BYTES:
            size, position = _read_varint(body, position)
        elif kind in _FIXED_BYTES:
            size = _FIXED_BYTES[kind]
        else:
            # Groups are of proto2, and the other types of none.
            raise _malformed(f"wire type {kind}")
        if size > len(body) - position:
            raise _malformed("it ends within a field")
        yield number, body[position : position + size] if kind == _BYTES else None
        position += size


def _read_varint(body: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if position + index >= len(body):
            raise _malformed("it ends within a number")
        byte = body[position + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise _malformed("a number of more than ten bytes")


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _bytes_field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _malformed(observed: str) -> MalformedEvidence:
    return MalformedEvidence(ReasonCode.MOUNT_REQUEST_MALFORMED, "mount request", observed)
