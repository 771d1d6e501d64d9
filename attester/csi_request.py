"""What a pod's volume asks for, out of the driver's words: which secrets, as whom, in files of which mode."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attester.csi_messages import MAX_REQUEST_BYTES, MountRequest
from attester.release import require_names, require_pod_token
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import decode_json_object
from verifier.wire.failures import MalformedEvidence, Rejection, printable

BROKER_AUDIENCE = "nodewarden-broker"
"""Of the pod's token that is ours to use. The CSIDriver's `tokenRequests` must name it."""
DEFAULT_MODE = 0o400
MODES: Mapping[str, int] = {"0400": 0o400, "0440": 0o440, "0444": 0o444}
"""What `filePermission` may be. Read-only: what a pod writes into its volume the next rotation takes away."""

_KUBELETS = "csi.storage.k8s.io/"
_TOKENS = f"{_KUBELETS}serviceAccount.tokens"
_SECRETS, _PERMISSION = "secrets", "filePermission"
_KNOWN = frozenset({_SECRETS, _PERMISSION, "secretProviderClass", "providerName"})
_CLASS = "SecretProviderClass parameters"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One mount. The pod's name is only for the log: the token says which pod it is, and the broker reads that."""

    claimed_pod: str
    names: tuple[str, ...]
    mode: int
    token: bytes

    def __repr__(self) -> str:
        return f"Wanted(claimed_pod={self.claimed_pod!r}, names={self.names!r}, mode=0{self.mode:o})"


def claimed_pod(request: MountRequest) -> str:
    """NAMESPACE/NAME as the driver says, fit for a log line; "?" for what it does not say."""
    try:
        attributes = decode_json_object(request.claimed_attributes.encode(), "attributes", MAX_REQUEST_BYTES)
    except MalformedEvidence:
        attributes = {}
    return "/".join(printable(str(attributes.get(f"{_KUBELETS}pod.{part}", "?"))) for part in ("namespace", "name"))


def wanted_by(request: MountRequest) -> Wanted:
    """What `request` asks for.

    Raises MalformedEvidence `mount-request-malformed` (the driver's part), `setting-invalid` (the SecretProviderClass),
    Rejection `pod-token-missing`, `token-invalid`. Does not check that the token is the pod's: the broker does.
    """
    attributes = _texts(request.claimed_attributes, "attributes")
    for name in attributes:
        if name not in _KNOWN and not name.startswith(_KUBELETS):
            # A misspelt parameter would otherwise be a default.
            allowed = f"{_SECRETS} and {_PERMISSION}"
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, _CLASS, name, allowed)
    names = tuple(name.strip() for name in attributes.get(_SECRETS, "").split(","))
    require_names(names, f"{_CLASS}: {_SECRETS}")
    wanted = attributes.get(_PERMISSION)
    if wanted is not None and wanted not in MODES:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, f"{_CLASS}: {_PERMISSION}", wanted, ", ".join(MODES))
    # The driver's own permission is a constant of its code (0644): it narrows ours, and never widens it.
    mode = (DEFAULT_MODE if wanted is None else MODES[wanted]) & _drivers_permission(request.claimed_permission)
    # A driver without secrets for us sends null.
    secrets = {} if request.claimed_secrets in ("", "null") else _texts(request.claimed_secrets, "secrets")
    return Wanted(claimed_pod(request), names, mode, _token(secrets, attributes))


def _texts(claimed: str, where: str) -> dict[str, str]:
    fields = _object(claimed, where)
    if not all(isinstance(value, str) for value in fields.values()):
        raise MalformedEvidence(ReasonCode.MOUNT_REQUEST_MALFORMED, where, "a value that is no text")
    return fields


def _object(claimed: str, where: str) -> dict[str, Any]:
    try:
        return decode_json_object(claimed.encode(), where, MAX_REQUEST_BYTES)
    except MalformedEvidence as error:
        observed = f"{error.code.value}: {error.failure.observed}"
        raise MalformedEvidence(ReasonCode.MOUNT_REQUEST_MALFORMED, where, observed) from error


def _drivers_permission(claimed: str) -> int:
    # Go's os.FileMode as JSON: a decimal number.
    if re.fullmatch(r"[0-9]{1,3}", claimed) is None or not int(claimed) & 0o400 or int(claimed) > 0o777:
        wanted = "a file mode in decimal that lets the owner read"
        raise MalformedEvidence(ReasonCode.MOUNT_REQUEST_MALFORMED, "permission", claimed, wanted)
    return int(claimed)


def _token(secrets: Mapping[str, str], attributes: Mapping[str, str]) -> bytes:
    # `secrets` first: the kubelet put it there where no log shows it. Older clusters have it among the attributes.
    for source, where in ((secrets, "secrets"), (attributes, "attributes")):
        claimed = source.get(_TOKENS, "")
        if not claimed:
            continue
        tokens = _object(claimed, f"{where}: {_TOKENS}")
        entry = tokens.get(BROKER_AUDIENCE)
        if entry is None:
            continue
        token = entry.get("token") if isinstance(entry, dict) else None
        if not isinstance(token, str):
            raise MalformedEvidence(ReasonCode.MOUNT_REQUEST_MALFORMED, f"{where}: {_TOKENS}", "no token in it")
        return require_pod_token(token.encode("utf-8", "surrogatepass"), f"{where}: {_TOKENS}")
    raise Rejection(ReasonCode.POD_TOKEN_MISSING, _TOKENS, "no token", json.dumps({"audience": BROKER_AUDIENCE}))
