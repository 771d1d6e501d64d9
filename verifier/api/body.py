"""Reading a request body: bounded in bytes and in what it decompresses to. In time, `api/protocol.py` bounds it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import zstandard

from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

_MAX_WINDOW_BYTES = 8 * 1024 * 1024

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed before its request was whole: there is nobody to answer."""


async def read_body(headers: dict[bytes, bytes], receive: Receive, max_bytes: int) -> bytes:
    """The whole body, decompressed where it is zstd; at most `max_bytes` before and after.

    Raises MalformedEvidence `body-too-large`, `compression-invalid`, ClientGone.
    """
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    encoding = headers.get(b"content-encoding")
    if encoding not in (None, b"identity", b"zstd"):
        raise MalformedEvidence(ReasonCode.COMPRESSION_INVALID, "content-encoding", None, "zstd or none")
    body = await _read(receive, max_bytes)
    return decompress(body, max_bytes) if encoding == b"zstd" else body


async def _read(receive: Receive, max_bytes: int) -> bytes:
    # Attack: a body in very many small pieces, each of which would copy all that came before.
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def decompress(body: bytes, max_bytes: int) -> bytes:
    """What the single zstd frame `body` holds; it must declare its size, at most `max_bytes` (CVE-2022-23951).

    Raises MalformedEvidence `compression-invalid`, `body-too-large`.
    """
    try:
        size = zstandard.frame_content_size(body)
        if size < 0:
            raise MalformedEvidence(ReasonCode.COMPRESSION_INVALID, "body", None, "a frame that declares its size")
        if size > max_bytes:
            raise _too_large(max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompressobj()
        content = decompressor.decompress(body)
    except zstandard.ZstdError as error:
        raise MalformedEvidence(ReasonCode.COMPRESSION_INVALID, "body", None, "one zstd frame") from error
    if len(content) != size or decompressor.unused_data or not decompressor.eof:
        raise MalformedEvidence(ReasonCode.COMPRESSION_INVALID, "body", None, "one whole zstd frame and nothing after")
    return content


def _too_large(max_bytes: int) -> MalformedEvidence:
    return MalformedEvidence(ReasonCode.BODY_TOO_LARGE, "body", None, f"at most {max_bytes} bytes")
