"""Who waits behind our scheduling gate, and what a mutated pod looks like."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from admission.decision import steer
from admission.review import parse_review
from admission.trust_objects import ATTESTATION_GATE
from admission.webhook import Gates, mutate
from tests.admission.test_webhook import POD, a_review, changed
from tests.admission.world import NODE, NOW, a_cluster, a_pod, a_policy, a_result
from verifier.wire.result import Verdict

UNVERIFIED = a_result(verdict=Verdict.CONTRAINDICATED)


def patch_of(answer: bytes) -> list[dict[str, Any]]:
    response = json.loads(answer)["response"]
    assert response["allowed"] is True
    return list(json.loads(base64.b64decode(response["patch"]))) if "patch" in response else []


def test_a_pod_waits_while_no_node_passes_and_only_then() -> None:
    assert Gates().wait(a_cluster(result=UNVERIFIED), a_pod(), NOW)
    assert not Gates().wait(a_cluster(), a_pod(), NOW)


@pytest.mark.parametrize(
    "pod",
    [
        a_pod(service_account="web"),
        a_pod(node_name=NODE),
        a_pod(gates=(ATTESTATION_GATE,)),
    ],
    ids=["not sensitive", "names its node", "gated already"],
)
def test_some_pods_never_get_the_gate(pod: Any) -> None:
    assert not Gates().wait(a_cluster(result=UNVERIFIED), pod, NOW)


def test_a_policy_that_only_warns_makes_nobody_wait() -> None:
    assert not Gates().wait(a_cluster(result=UNVERIFIED, policies=(a_policy(enforcement="warn"),)), a_pod(), NOW)


def test_what_was_found_is_remembered_for_the_second_and_looked_up_again_after_it() -> None:
    gates = Gates()
    assert gates.wait(a_cluster(result=UNVERIFIED), a_pod(), NOW)
    assert gates.wait(a_cluster(), a_pod(), NOW)
    assert not gates.wait(a_cluster(), a_pod(), NOW + 1)


def test_the_gate_is_added_to_those_that_are_there_and_the_affinity_beside_it() -> None:
    pod = changed(POD, "spec", schedulingGates=[{"name": "other.example/gate"}])
    review = parse_review(json.dumps(a_review(pod)).encode())
    state = a_cluster(result=UNVERIFIED)
    patches = {patch["path"]: patch["value"] for patch in patch_of(mutate(state, review, Gates(), NOW))}
    assert patches["/spec/schedulingGates"] == [{"name": "other.example/gate"}, {"name": ATTESTATION_GATE}]
    assert patches["/spec/affinity"] == steer(state, a_pod(), {}, NOW)
    # Without a controller to take it off, no gate is put on.
    assert [patch["path"] for patch in patch_of(mutate(state, review, None, NOW))] == ["/spec/affinity"]
