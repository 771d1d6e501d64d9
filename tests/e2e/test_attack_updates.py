"""A tenant changes a pod after it was admitted, or says of it what is not so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.client import Client
from tests.e2e.governed import IMAGE, Governed, is_labelled
from tests.e2e.pods import wait_for_phase
from tests.e2e.system import System
from verifier.wire.codes import ReasonCode

OTHER_IMAGE = "registry.example/shell@sha256:" + "b" * 64
WORKLOAD_LABEL = "nodewarden.dev/workload"


@pytest.fixture
def running(governed: Governed, tenant: Client) -> Governed:
    """A sensitive pod `p` runs on a verified node."""
    tenant.must_create(governed.path(), governed.pod("p"))
    wait_for_phase(tenant, governed.namespace, "p")
    return governed


def test_another_image_is_denied_at_creation(governed: Governed, tenant: Client) -> None:
    answer = tenant.create(governed.path(), governed.pod("p", OTHER_IMAGE))
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), answer.message


def test_an_image_changed_after_admission_is_denied(running: Governed, tenant: Client) -> None:
    change = {"spec": {"containers": [{"name": "main", "image": OTHER_IMAGE}]}}
    answer = tenant.patch(running.path("p"), change, kind="strategic")
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), answer.message


def test_an_ephemeral_container_is_denied_even_with_a_listed_image(running: Governed, tenant: Client) -> None:
    listed = tenant.must_get(running.path("p"))["spec"]["containers"][0]["image"]
    change = {"spec": {"ephemeralContainers": [{"name": "debug", "image": listed}]}}
    answer = tenant.patch(running.path("p", "ephemeralcontainers"), change, kind="strategic")
    assert answer.denies(ReasonCode.ACCESS_FORBIDDEN), answer.message


def test_an_ephemeral_container_with_another_image_is_denied_for_both(running: Governed, tenant: Client) -> None:
    change = {"spec": {"ephemeralContainers": [{"name": "debug", "image": OTHER_IMAGE}]}}
    answer = tenant.patch(running.path("p", "ephemeralcontainers"), change, kind="strategic")
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED, ReasonCode.ACCESS_FORBIDDEN), answer.message


def test_an_ephemeral_container_in_an_ordinary_pod_of_the_same_namespace_is_accepted(
    running: Governed, tenant: Client
) -> None:
    tenant.must_create(running.path(), running.pod("plain", serviceAccountName="default"))
    wait_for_phase(tenant, running.namespace, "plain")
    change = {"spec": {"ephemeralContainers": [{"name": "debug", "image": OTHER_IMAGE}]}}
    answer = tenant.patch(running.path("plain", "ephemeralcontainers"), change, kind="strategic")
    assert answer.accepted, answer.message


def test_a_label_of_a_workload_that_does_not_govern_the_pod_is_denied(governed: Governed, tenant: Client) -> None:
    pod = governed.pod("plain", serviceAccountName="default")
    pod["metadata"]["labels"] = {WORKLOAD_LABEL: governed.namespace}
    answer = tenant.create(governed.path(), pod)
    assert answer.denies(ReasonCode.WORKLOAD_LABEL_FORGED), answer.message


def test_the_label_and_the_floor_of_a_pod_cannot_be_taken_off(governed: Governed, tenant: Client) -> None:
    pod = governed.pod("p")
    pod["metadata"] |= {
        "labels": {WORKLOAD_LABEL: governed.namespace},
        "annotations": {"nodewarden.dev/min-baseline": "demo-node@1.0.0"},
    }
    tenant.must_create(governed.path(), pod)
    for change in ({"labels": {WORKLOAD_LABEL: None}}, {"annotations": {"nodewarden.dev/min-baseline": None}}):
        answer = tenant.patch(governed.path("p"), {"metadata": change})
        assert answer.denies(ReasonCode.WORKLOAD_LABEL_CHANGED), answer.message


def test_a_pod_without_the_label_is_as_sensitive_as_with_it(governed: Governed, tenant: Client) -> None:
    answer = tenant.create(governed.path(), governed.pod("p", OTHER_IMAGE))
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), answer.message


def test_a_dry_run_is_judged_and_leaves_no_event(system: System, governed: Governed, tenant: Client) -> None:
    answer = tenant.create(governed.path(), governed.pod("dry", OTHER_IMAGE), dry_run=True)
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), answer.message
    events = system.plane.admin.must_get(f"/api/v1/namespaces/{governed.namespace}/events")["items"]
    assert [event for event in events if event["involvedObject"].get("name") == "dry"] == []


def a_megabyte(governed: Governed, image: str) -> dict[str, Any]:
    """A pod of more than 1,000,000 bytes, most of what the API server's store takes."""
    pod = governed.pod("big", image)
    pod["metadata"]["annotations"] = {f"example.org/a{number}": "x" * 1000 for number in range(250)}
    pod["spec"]["containers"][0]["env"] = [{"name": f"V{number}", "value": "y" * 1000} for number in range(750)]
    assert 1_000_000 < len(json.dumps(pod)) < 1_100_000
    return pod


def test_a_pod_of_a_megabyte_is_judged_when_it_is_created_changed_and_bound(governed: Governed, tenant: Client) -> None:
    answer = tenant.create(governed.path(), a_megabyte(governed, OTHER_IMAGE))
    assert answer.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), answer.message
    tenant.must_create(governed.path(), a_megabyte(governed, IMAGE))
    # The review of a change holds the pod twice.
    change = {"spec": {"containers": [{"name": "main", "image": OTHER_IMAGE}]}}
    changed = tenant.patch(governed.path("big"), change, kind="strategic")
    assert changed.denies(ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED), changed.message
    tenant.must_patch(governed.path("big"), {"metadata": {"labels": {"example.org/a": "b"}}})
    bound = wait_for_phase(tenant, governed.namespace, "big")
    assert is_labelled(governed.admin, bound["spec"]["nodeName"])
