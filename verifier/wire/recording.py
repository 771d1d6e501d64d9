"""Recorded evidence as files: one layout for what an attester collects, a verifier exports and a person judges later.

`bundle.json` is the evidence bundle with each body replaced by `{"file": NAME}`; `challenge.json` and `enrolment.json`
hold what the verifier knew beside it. This module maps names to bytes and touches no disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from verifier.wire.bundle import NONCE_BYTES, EvidenceBundle, Nonce
from verifier.wire.bundle_codec import bundle_from_json, item_as_json
from verifier.wire.challenge import Pcr
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import canonical_json, decode_base64url, decode_json_object, encode_base64url
from verifier.wire.failures import MalformedEvidence
from verifier.wire.messages import Base64Url, Hex32, Message, NodeName, bytes_of, decode_message

BUNDLE_FILE = "bundle.json"
CHALLENGE_FILE = "challenge.json"
ENROLMENT_FILE = "enrolment.json"
MAX_FILES = 512
MAX_FILE_BYTES = 4 * 1024 * 1024

FILE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
"""Attack: a name with a slash or a leading dot, by which a recording would read files outside its directory."""
_BODIES: Mapping[str, tuple[str, ...]] = {
    "tpm-quote": ("attest", "signature"),
    "boot-log": ("log",),
    "ima-log": ("log",),
    "binding-key": ("public", "certify", "certify_signature"),
    "node-token": ("token",),
    "host-facts": ("body",),
}


class RecordedChallenge(Message):
    """The challenge that the evidence answers. `form` is `bound`; `bare-nonce` is for recordings of other tools, whose
    quotes answer the nonce itself, and no service accepts it."""

    nonce: Base64Url
    issued_at: Annotated[int, Field(ge=0, le=253402300799)]
    """Seconds since 1970 (to the end of 9999) by the clock of whoever made the challenge; evidence is judged then."""
    pcr_bank: Annotated[str, Field(pattern=r"\A(sha256|sha384|sha512)\z")]
    pcrs: Annotated[list[Pcr], Field(min_length=1, max_length=24)]
    form: Literal["bound", "bare-nonce"]
    verifier_id: Annotated[str, Field(min_length=1, max_length=512)]


class RecordedEnrolment(Message):
    """The node as it was enrolled, or as it claims to be when it collects for itself: nothing of it is proved."""

    node_id: Hex32
    node_name: NodeName
    tenant: Annotated[str, Field(min_length=1, max_length=63)]
    cohort: Annotated[str, Field(min_length=1, max_length=63)]
    ek_public: Base64Url
    ak_public: Base64Url
    ek_certificates: Annotated[list[Base64Url], Field(max_length=8)]


@dataclass(frozen=True, slots=True)
class Recording:
    """One piece of recorded evidence. Nothing in it is verified."""

    bundle: EvidenceBundle
    challenge: RecordedChallenge
    enrolment: RecordedEnrolment


def recording_files(recording: Recording) -> dict[str, bytes]:
    """The files of `recording` by name; `recording_from_files` of them gives it back."""
    files: dict[str, bytes] = {}
    items: list[dict[str, Any]] = []
    for item in recording.bundle.items:
        bodies = iter(_BODIES[item.kind])

        def to_file(body: bytes, stem: str = f"{item.kind}-{item.index}", names: Any = bodies) -> dict[str, str]:
            name = f"{stem}.{next(names)}.bin"
            files[name] = body
            return {"file": name}

        items.append(item_as_json(item, to_file))
    nonce = encode_base64url(recording.bundle.claimed_nonce)
    bundle = {"version": 1, "node_id": recording.bundle.claimed_node_id, "nonce": nonce, "items": items}
    files[BUNDLE_FILE] = canonical_json(bundle)
    files[CHALLENGE_FILE] = canonical_json(recording.challenge.model_dump())
    files[ENROLMENT_FILE] = canonical_json(recording.enrolment.model_dump())
    return files


def recording_from_files(files: Mapping[str, bytes]) -> Recording:
    """The recording whose files by name are `files`; files that it does not name are left alone.

    Raises MalformedEvidence: `recording-incomplete` (a file is missing or badly named), and what `decode_bundle` and
    `decode_message` raise.
    """
    bundle = decode_json_object(_file(files, BUNDLE_FILE), BUNDLE_FILE)
    items = bundle.get("items")
    if isinstance(items, list):
        bundle["items"] = [_with_bodies(item, files) for item in items]
    challenge = decode_message(RecordedChallenge, _file(files, CHALLENGE_FILE), CHALLENGE_FILE)
    decode_base64url(challenge.nonce, f"{CHALLENGE_FILE}.nonce", NONCE_BYTES)
    enrolment = decode_message(RecordedEnrolment, _file(files, ENROLMENT_FILE), ENROLMENT_FILE)
    return Recording(bundle_from_json(bundle), challenge, enrolment)


def recorded_nonce(challenge: RecordedChallenge) -> Nonce:
    """The challenge's nonce as bytes."""
    return Nonce(bytes_of(challenge.nonce))


def _file(files: Mapping[str, bytes], name: str) -> bytes:
    body = files.get(name)
    if body is None or FILE_NAME.fullmatch(name) is None:
        raise MalformedEvidence(ReasonCode.RECORDING_INCOMPLETE, name, "missing", "a file of the recording")
    return body


def _with_bodies(item: object, files: Mapping[str, bytes]) -> object:
    """`item` with each named file's content in its place; what is no item is left for `bundle_from_json` to refuse."""
    if not isinstance(item, dict):
        return item
    whole = dict(item)
    for field in _BODIES.get(str(item.get("kind")), ()):
        if field not in item:
            continue  # A boot log that is named by digest has no body.
        reference = item[field]
        if not isinstance(reference, dict) or reference.keys() != {"file"} or type(reference["file"]) is not str:
            raise MalformedEvidence(ReasonCode.SCHEMA_MISMATCH, f"{BUNDLE_FILE}.{field}", None, '{"file": NAME}')
        whole[field] = encode_base64url(_file(files, reference["file"]))
    return whole
