"""What the tests of the installation's policies share."""

from __future__ import annotations

from typing import Any

from tests.e2e.client import Answer, Client

OURS = "/apis/nodewarden.dev/v1alpha1"
REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
FLOW_CONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
LABEL = "nodewarden.node-restriction.kubernetes.io/verified"


def denied_by(answer: Answer, policy: str) -> bool:
    """Whether exactly our policy refused it."""
    return answer.status == 403 and f"ValidatingAdmissionPolicy '{policy}'" in answer.message


def patched(client: Client, node: str, body: Any, part: str = "") -> Answer:
    """The answer to a merge patch of a Node or of one of its parts."""
    return client.patch(f"/api/v1/nodes/{node}{part}", body)
