"""SecretRelease objects as the API server tells them: right ones, and ones that cannot be read as leases."""

from __future__ import annotations

from typing import Any

from admission.lease_records import instant
from admission.leases import lease_key
from tests.admission.world import BOOT_ID, NODE, NODE_UID, NOW, POD_UID

AT = "2027-01-15T08:00:00Z"
ORDER = {"type": "RevocationRequested", "status": "True", "lastTransitionTime": AT}
DONE = {"type": "Revoked", "status": "True", "lastTransitionTime": AT}
FAILING = {"type": "Revoked", "status": "False", "message": "store-unavailable: backend"}
ORDERED: dict[str, Any] = {"conditions": [ORDER]}
FAILED: dict[str, Any] = {"conditions": [ORDER, FAILING]}
REVOKED: dict[str, Any] = {"conditions": [ORDER, DONE], "revokedAt": AT}
OVERWRITTEN: dict[str, Any] = {"conditions": [ORDER], "revokedAt": AT}
"""An answer of which a part is gone: it is none."""


def a_release(status: dict[str, Any] | None = None, *, name: str = "", **spec: Any) -> dict[str, Any]:
    """A lease of the world's pod, named by its key unless `name` is given; None in `spec` leaves a field out."""
    whole = {
        "secret": "llm/key",
        "namespace": "ml",
        "podName": "llm-0",
        "podUID": POD_UID,
        "nodeName": NODE,
        "nodeUID": NODE_UID,
        "bootID": BOOT_ID,
        "bindingKeyThumbprint": "cb" * 32,
        "expires": instant(NOW + 60),
        **spec,
    }
    key = lease_key(*(str(whole[field]) for field in ("podUID", "nodeUID", "bootID", "secret")))
    return {
        "metadata": {"name": name or key, "uid": f"uid-of-{name or key}", "resourceVersion": "1"},
        "spec": {field: value for field, value in whole.items() if value is not None},
        "status": status or {},
    }
