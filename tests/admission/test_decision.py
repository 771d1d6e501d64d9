"""Pods, bindings and releases: each rule as a sentence, each denial by its code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from admission.cluster_objects import PodImage, Toleration
from admission.decision import (
    Allow,
    BindingRequest,
    Deny,
    Release,
    decide_binding,
    decide_pod_create,
    decide_pod_update,
    decide_release,
    steer,
)
from admission.trust_objects import ATTESTATION_GATE, CONTROLLER_USER, Access, Exemption, StricterRule
from tests.admission.world import (
    IMAGE,
    NODE,
    NOW,
    POD_UID,
    a_cluster,
    a_node,
    a_pod,
    a_policy,
    a_result,
    a_workload,
    an_identity,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.result import BaselineRef, Verdict

OTHER_IMAGE = "registry.example/tool@sha256:" + "b" * 64
BAD_NODE = a_result(verdict=Verdict.CONTRAINDICATED)
KEY = {"kty": "EC"}


def codes(decision: object) -> list[ReasonCode]:
    assert isinstance(decision, Deny)
    return [failure.code for failure in decision.failures]


def a_binding(**changes: Any) -> BindingRequest:
    return replace(BindingRequest("ml", "llm-0", POD_UID, NODE), **changes)


# --- creating pods ---


def test_a_pod_that_no_workload_governs_is_allowed_whatever_it_is() -> None:
    pod = a_pod(service_account="web", images=(PodImage("container", "x", "busybox"),), node_name="gpu-9")
    assert decide_pod_create(a_cluster(), pod, NOW) == Allow()
    assert decide_pod_create(a_cluster(), a_pod(namespace="other"), NOW) == Allow()
    assert steer(a_cluster(), pod, {}, NOW) is None


def test_a_governed_pod_with_listed_images_is_allowed() -> None:
    assert decide_pod_create(a_cluster(), a_pod(), NOW) == Allow()


@pytest.mark.parametrize("role", ["container", "init", "ephemeral", "volume"])
@pytest.mark.parametrize(
    "image",
    [
        OTHER_IMAGE,
        "registry.example/llm:latest",
        "registry.example/llm",
        "evil.example/llm@sha256:" + "a" * 64,
        "",
        IMAGE + "0",
        IMAGE.replace("llm", "../llm"),
        IMAGE.upper(),
        IMAGE + "\n",
    ],
)
def test_one_unlisted_image_of_any_kind_denies_the_pod(role: Any, image: str) -> None:
    pod = a_pod(images=(PodImage("container", "main", IMAGE), PodImage(role, "extra", image)))
    assert codes(decide_pod_create(a_cluster(), pod, NOW)) == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED]


def test_a_tag_beside_the_listed_digest_changes_nothing() -> None:
    pod = a_pod(images=(PodImage("container", "main", IMAGE.replace("@", ":v1@")),))
    assert decide_pod_create(a_cluster(), pod, NOW) == Allow()


@pytest.mark.parametrize(
    "toleration",
    [
        Toleration("nodewarden.dev/unverified", "Exists", ""),
        Toleration("nodewarden.dev/unverified", "Equal", "NoSchedule"),
        Toleration("", "Exists", ""),
        Toleration("", "Exists", "NoExecute"),
    ],
)
def test_a_toleration_of_the_unverified_taint_or_of_every_taint_is_denied(toleration: Toleration) -> None:
    decision = decide_pod_create(a_cluster(), a_pod(tolerations=(toleration,)), NOW)
    assert codes(decision) == [ReasonCode.WORKLOAD_TOLERATION_FORBIDDEN]


def test_a_toleration_of_another_taint_is_fine() -> None:
    pod = a_pod(tolerations=(Toleration("nvidia.com/gpu", "Exists", "NoSchedule"),))
    assert decide_pod_create(a_cluster(), pod, NOW) == Allow()


def test_a_pod_set_directly_onto_an_unverified_node_is_denied_with_the_nodes_reasons() -> None:
    decision = decide_pod_create(a_cluster(result=BAD_NODE), a_pod(node_name=NODE), NOW)
    assert codes(decision) == [ReasonCode.NODE_NAME_SET_DIRECTLY, ReasonCode.NODE_NOT_VERIFIED]


def test_a_pod_set_directly_onto_a_verified_node_is_allowed() -> None:
    assert decide_pod_create(a_cluster(), a_pod(node_name=NODE), NOW) == Allow()


def test_a_workload_label_is_worn_only_by_pods_of_that_workload() -> None:
    label = {"nodewarden.dev/workload": "llm"}
    assert decide_pod_create(a_cluster(), a_pod(labels=label), NOW) == Allow()
    foreign = a_pod(labels=label, service_account="web")
    assert codes(decide_pod_create(a_cluster(), foreign, NOW)) == [ReasonCode.WORKLOAD_LABEL_FORGED]


def test_a_missing_policy_denies_instead_of_meaning_no_rules() -> None:
    assert codes(decide_pod_create(a_cluster(policies=()), a_pod(), NOW)) == [ReasonCode.POLICY_UNKNOWN]


@pytest.mark.parametrize("demand", ["h200-prod", "h200-prod@4", "h200-prod@4.2.0 ", "@4.2.0", "h100@4.2.0", ""])
def test_a_minimum_baseline_that_cannot_be_meant_is_denied(demand: str) -> None:
    pod = a_pod(annotations={"nodewarden.dev/min-baseline": demand})
    assert codes(decide_pod_create(a_cluster(), pod, NOW)) == [ReasonCode.MIN_BASELINE_INVALID]


def test_an_enforcement_of_warn_or_audit_lets_the_pod_through_and_says_what_it_would_have_denied() -> None:
    pod = a_pod(images=(PodImage("container", "main", OTHER_IMAGE),), node_name=NODE)
    for enforcement in ("warn", "audit"):
        state = a_cluster(policies=(a_policy(enforcement=enforcement),), result=BAD_NODE)
        decision = decide_pod_create(state, pod, NOW)
        assert isinstance(decision, Allow)
        noted = decision.warnings if enforcement == "warn" else decision.audited
        found = {failure.code for failure in noted}
        assert found == {
            ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED,
            ReasonCode.NODE_NAME_SET_DIRECTLY,
            ReasonCode.NODE_NOT_VERIFIED,
        }
        assert steer(state, a_pod(), {}, NOW) is None


def test_an_exemption_holds_for_its_service_account_until_it_expires() -> None:
    exempted = a_policy(exemptions=(Exemption("ml", "llm", "INC-1", NOW + 1),))
    state = a_cluster(policies=(exempted,), result=BAD_NODE)
    decision = decide_binding(state, a_binding(), NOW)
    assert isinstance(decision, Allow)
    assert decision.exemptions == ("h200-prod: INC-1",)
    assert codes(decide_binding(state, a_binding(), NOW + 1)) == [ReasonCode.NODE_NOT_VERIFIED]
    other = a_policy(exemptions=(Exemption("ml", "web", "INC-1", NOW + 1),))
    assert codes(decide_binding(a_cluster(policies=(other,), result=BAD_NODE), a_binding(), NOW)) == [
        ReasonCode.NODE_NOT_VERIFIED
    ]


def test_a_selector_adds_a_stricter_policy_and_keeps_the_workloads_own() -> None:
    gold = a_policy(name="h200-gold", baselines={"h200-prod": (5, 0, 0)})
    workload = a_workload(stricter=(StricterRule({"tier": "gold"}, "h200-gold"),))
    pod = a_pod(labels={"tier": "gold"})
    state = a_cluster(pod=pod, policies=(a_policy(), gold), workloads=(workload,))
    assert codes(decide_binding(state, a_binding(), NOW)) == [ReasonCode.BASELINE_BELOW_FLOOR]
    assert decide_binding(replace(state, pods={("ml", "llm-0"): a_pod()}), a_binding(), NOW) == Allow()
    lax = a_policy(name="h200-gold", baselines={"h200-prod": (0, 0, 1)}, accept=frozenset(Verdict))
    state = a_cluster(pod=pod, policies=(a_policy(), lax), workloads=(workload,), result=BAD_NODE)
    assert codes(decide_binding(state, a_binding(), NOW)) == [ReasonCode.NODE_NOT_VERIFIED]


def test_a_pod_of_two_workloads_must_satisfy_both() -> None:
    second = a_workload(name="second", images=frozenset({OTHER_IMAGE}))
    state = a_cluster(workloads=(a_workload(), second))
    assert codes(decide_pod_create(state, a_pod(), NOW)) == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED]


# --- updating pods ---


def test_an_update_that_changes_nothing_of_ours_is_allowed_even_on_a_pod_that_breaks_the_rules() -> None:
    old = a_pod(images=(PodImage("container", "main", OTHER_IMAGE),), tolerations=(Toleration("", "Exists", ""),))
    assert decide_pod_update(a_cluster(), old, replace(old, labels={"a": "b"}), "tenant", NOW) == Allow()
    assert decide_pod_update(a_cluster(), old, replace(old, deleting=True), "tenant", NOW) == Allow()


def test_an_update_to_an_unlisted_image_is_denied() -> None:
    new = a_pod(images=(*a_pod().images, PodImage("container", "debug", OTHER_IMAGE)))
    assert codes(decide_pod_update(a_cluster(), a_pod(), new, "tenant", NOW)) == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED]


def test_an_ephemeral_container_needs_an_open_workload_and_a_listed_image() -> None:
    listed = a_pod(images=(*a_pod().images, PodImage("ephemeral", "debug", IMAGE)))
    other = a_pod(images=(*a_pod().images, PodImage("ephemeral", "debug", OTHER_IMAGE)))
    state = a_cluster(workloads=(a_workload(access=Access(ephemeral_containers=True)),))
    assert decide_pod_update(state, a_pod(), listed, "tenant", NOW) == Allow()
    assert codes(decide_pod_update(state, a_pod(), other, "tenant", NOW)) == [ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED]
    assert codes(decide_pod_update(a_cluster(), a_pod(), listed, "tenant", NOW)) == [ReasonCode.ACCESS_FORBIDDEN]
    # One that is there already is not judged again by an update of something else.
    assert decide_pod_update(a_cluster(), listed, replace(listed, labels={"a": "b"}), "tenant", NOW) == Allow()


def test_only_the_controller_takes_our_gate_off_a_sensitive_pod() -> None:
    gated = a_pod(gates=("other.example/gate", ATTESTATION_GATE))
    freed = a_pod(gates=("other.example/gate",))
    assert codes(decide_pod_update(a_cluster(), gated, freed, "tenant", NOW)) == [ReasonCode.GATE_REMOVED]
    assert codes(decide_pod_update(a_cluster(), gated, freed, "system:admin", NOW)) == [ReasonCode.GATE_REMOVED]
    assert decide_pod_update(a_cluster(), gated, freed, CONTROLLER_USER, NOW) == Allow()
    assert decide_pod_update(a_cluster(), gated, a_pod(gates=(ATTESTATION_GATE,)), "tenant", NOW) == Allow()
    web = replace(gated, service_account="web")
    assert decide_pod_update(a_cluster(), web, replace(web, gates=()), "tenant", NOW) == Allow()


def test_an_update_that_adds_a_wildcard_toleration_is_denied() -> None:
    new = a_pod(tolerations=(Toleration("", "Exists", ""),))
    assert codes(decide_pod_update(a_cluster(), a_pod(), new, "tenant", NOW)) == [
        ReasonCode.WORKLOAD_TOLERATION_FORBIDDEN
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"labels": {"nodewarden.dev/workload": "llm"}}),
        ({"labels": {"nodewarden.dev/workload": "llm"}}, {"labels": {}}),
        ({"annotations": {"nodewarden.dev/min-baseline": "h200-prod@5.0.0"}}, {"annotations": {}}),
    ],
)
def test_label_and_floor_of_a_governed_pod_cannot_be_changed(old: dict[str, Any], new: dict[str, Any]) -> None:
    decision = decide_pod_update(a_cluster(), a_pod(**old), a_pod(**new), "tenant", NOW)
    assert codes(decision) == [ReasonCode.WORKLOAD_LABEL_CHANGED]


def test_a_label_that_picked_a_stricter_policy_cannot_be_dropped() -> None:
    workload = a_workload(stricter=(StricterRule({"tier": "gold"}, "h200-gold"),))
    state = a_cluster(policies=(a_policy(), a_policy(name="h200-gold")), workloads=(workload,))
    decision = decide_pod_update(state, a_pod(labels={"tier": "gold"}), a_pod(), "tenant", NOW)
    assert codes(decision) == [ReasonCode.WORKLOAD_LABEL_CHANGED]


def test_a_pod_that_no_workload_governs_cannot_put_on_the_label_later() -> None:
    old = a_pod(service_account="web")
    worn = replace(old, labels={"nodewarden.dev/workload": "llm"})
    assert codes(decide_pod_update(a_cluster(), old, worn, "tenant", NOW)) == [ReasonCode.WORKLOAD_LABEL_FORGED]
    assert decide_pod_update(a_cluster(), worn, old, "tenant", NOW) == Allow()


@pytest.mark.parametrize("old", [{}, {"service_account": "web"}, {"namespace": "free"}])
@pytest.mark.parametrize("new", [{"node_name": "gpu-9"}, {"service_account": "other"}])
def test_an_update_cannot_move_a_pod_or_make_it_anothers(old: dict[str, Any], new: dict[str, Any]) -> None:
    decision = decide_pod_update(a_cluster(), a_pod(**old), a_pod(**{**old, **new}), "tenant", NOW)
    assert codes(decision) == [ReasonCode.POD_IDENTITY_CHANGED]


def test_a_toleration_of_scheduling_is_no_permission_for_one_of_eviction() -> None:
    wild = Toleration("", "Exists", "NoSchedule")
    old = a_pod(tolerations=(wild,))
    assert decide_pod_update(a_cluster(), old, replace(old, labels={"a": "b"}), "tenant", NOW) == Allow()
    new = replace(old, tolerations=(wild, Toleration("", "Exists", "NoExecute")))
    decision = decide_pod_update(a_cluster(), old, new, "tenant", NOW)
    assert codes(decision) == [ReasonCode.WORKLOAD_TOLERATION_FORBIDDEN]


# --- binding ---


def test_a_pod_may_be_bound_to_a_verified_node() -> None:
    assert decide_binding(a_cluster(), a_binding(), NOW) == Allow()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"pod_uid": ""}, ReasonCode.BINDING_UID_MISSING),
        ({"pod_uid": "another"}, ReasonCode.POD_UID_MISMATCH),
        ({"pod_name": "llm-9"}, ReasonCode.POD_UNKNOWN),
        ({"node_name": "gpu-9"}, ReasonCode.NODE_UNKNOWN_TO_CLUSTER),
        ({"labels": {"nodewarden.dev/workload": "llm"}}, ReasonCode.BINDING_METADATA_FORBIDDEN),
        (
            {"annotations": {"nodewarden.node-restriction.kubernetes.io/verified": "true"}},
            ReasonCode.BINDING_METADATA_FORBIDDEN,
        ),
    ],
)
def test_a_binding_with_one_wrong_part_is_denied_for_it(changes: dict[str, Any], code: ReasonCode) -> None:
    assert codes(decide_binding(a_cluster(), a_binding(**changes), NOW)) == [code]


GOLD = a_workload(stricter=(StricterRule({"tier": "gold"}, "h200-gold"),))
GOLD_POLICIES = (a_policy(), a_policy(name="h200-gold", baselines={"h200-prod": (4, 3, 0)}))


def test_a_binding_cannot_overwrite_the_label_that_picked_a_stricter_policy() -> None:
    policies = (a_policy(), a_policy(name="h200-gold"))
    state = a_cluster(pod=a_pod(labels={"tier": "gold"}), policies=policies, workloads=(GOLD,))
    assert decide_binding(state, a_binding(), NOW) == Allow()
    assert decide_binding(state, a_binding(labels={"zone": "a", "tier": "gold"}), NOW) == Allow()
    bronze = decide_binding(state, a_binding(labels={"tier": "bronze"}), NOW)
    assert codes(bronze) == [ReasonCode.WORKLOAD_LABEL_CHANGED]


def test_a_binding_that_picks_a_stricter_policy_is_checked_under_it() -> None:
    state = a_cluster(policies=GOLD_POLICIES, workloads=(GOLD,))
    assert decide_binding(state, a_binding(), NOW) == Allow()
    decision = decide_binding(state, a_binding(labels={"tier": "gold"}), NOW)
    assert codes(decision) == [ReasonCode.BASELINE_BELOW_FLOOR]


@pytest.mark.parametrize("place", ["labels", "annotations"])
@pytest.mark.parametrize("namespace", ["ml", "free"])
def test_our_keys_on_a_binding_are_denied_for_ungoverned_pods_too(place: str, namespace: str) -> None:
    state = a_cluster(pod=a_pod(service_account="web"))
    binding = a_binding(**{"namespace": namespace, place: {"nodewarden.dev/workload": "llm"}})
    assert codes(decide_binding(state, binding, NOW)) == [ReasonCode.BINDING_METADATA_FORBIDDEN]


def test_a_binding_of_a_pod_that_is_being_deleted_is_denied() -> None:
    assert codes(decide_binding(a_cluster(pod=a_pod(deleting=True)), a_binding(), NOW)) == [ReasonCode.POD_DELETING]


def test_a_binding_to_an_unverified_node_is_denied() -> None:
    assert codes(decide_binding(a_cluster(result=BAD_NODE), a_binding(), NOW)) == [ReasonCode.NODE_NOT_VERIFIED]


def test_a_pods_annotation_raises_the_floor_at_binding() -> None:
    pod = a_pod(annotations={"nodewarden.dev/min-baseline": "h200-prod@4.3.0"})
    assert codes(decide_binding(a_cluster(pod=pod), a_binding(), NOW)) == [ReasonCode.BASELINE_BELOW_FLOOR]


def test_a_binding_in_a_namespace_without_workloads_is_nobodys_business() -> None:
    assert decide_binding(a_cluster(), a_binding(namespace="other", pod_name="x", pod_uid=""), NOW) == Allow()


def test_a_binding_of_an_ungoverned_pod_must_name_that_pod_because_a_governed_one_may_have_its_name_by_now() -> None:
    state = a_cluster(pod=a_pod(service_account="web"))
    assert decide_binding(state, a_binding(), NOW) == Allow()
    assert codes(decide_binding(state, a_binding(pod_uid=""), NOW)) == [ReasonCode.BINDING_UID_MISSING]
    assert codes(decide_binding(state, a_binding(pod_uid="newer"), NOW)) == [ReasonCode.POD_UID_MISMATCH]
    nameless = a_cluster(pod=a_pod(service_account="web", uid=""))
    assert codes(decide_binding(nameless, a_binding(pod_uid=""), NOW)) == [ReasonCode.BINDING_UID_MISSING]


# --- release ---


def release_state(**changes: Any) -> Any:
    return a_cluster(
        pod=changes.pop("pod", a_pod(node_name=NODE)),
        result=changes.pop("result", a_result(binding_key=KEY)),
        **changes,
    )


def released(state: Any, identity: Any = None, secrets: tuple[str, ...] = ("llm/key",), now: int = NOW) -> Any:
    return decide_release(state, identity or an_identity(), secrets, now)


def test_a_listed_secret_is_released_to_the_live_pod_on_its_verified_node() -> None:
    decision = released(release_state())
    assert isinstance(decision, Release)
    assert [grant.path for grant in decision.grants] == ["key.bin"]


@pytest.mark.parametrize(
    ("identity", "code"),
    [
        ({"pod_uid": "old"}, ReasonCode.POD_UID_MISMATCH),
        ({"pod_name": "llm-9"}, ReasonCode.POD_UNKNOWN),
        ({"node_uid": "old"}, ReasonCode.NODE_MISMATCH),
        ({"node_name": "gpu-9"}, ReasonCode.NODE_UNKNOWN_TO_CLUSTER),
        ({"service_account": "web"}, ReasonCode.POD_UID_MISMATCH),
    ],
)
def test_a_token_of_another_pod_or_node_gets_nothing(identity: dict[str, Any], code: ReasonCode) -> None:
    assert codes(released(release_state(), an_identity(**identity))) == [code]


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        ({"node_name": ""}, ReasonCode.NODE_MISMATCH),
        ({"node_name": "gpu-2"}, ReasonCode.NODE_MISMATCH),
        ({"node_name": NODE, "deleting": True}, ReasonCode.POD_DELETING),
        ({"node_name": NODE, "ended": True}, ReasonCode.POD_DELETING),
        ({"node_name": NODE, "images": (PodImage("init", "x", OTHER_IMAGE),)}, ReasonCode.WORKLOAD_IMAGE_NOT_ALLOWED),
    ],
)
def test_a_pod_elsewhere_or_ending_or_with_a_foreign_image_gets_nothing(pod: dict[str, Any], code: ReasonCode) -> None:
    assert codes(released(release_state(pod=a_pod(**pod)))) == [code]


def test_an_unlisted_secret_denies_the_whole_request() -> None:
    decision = released(release_state(), secrets=("llm/key", "db/password"))
    assert codes(decision) == [ReasonCode.SECRET_NOT_ALLOWED]


def test_a_pod_that_no_workload_governs_gets_no_secret() -> None:
    pod = a_pod(node_name=NODE, service_account="web")
    decision = released(release_state(pod=pod), an_identity(service_account="web"))
    assert codes(decision) == [ReasonCode.SECRET_NOT_ALLOWED]


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"verdict": Verdict.CONTRAINDICATED}, ReasonCode.NODE_NOT_VERIFIED),
        ({"expires_at": NOW - 1}, ReasonCode.RESULT_EXPIRED),
        ({"baseline": BaselineRef("h200-prod", "1.0.0", "")}, ReasonCode.BASELINE_BELOW_FLOOR),
        ({"binding_key": None}, ReasonCode.RESULT_WITHOUT_BINDING_KEY),
        ({"boot_id": None}, ReasonCode.RESULT_WITHOUT_BINDING_KEY),
    ],
)
def test_a_node_without_a_good_fresh_result_gets_nothing(result: dict[str, Any], code: ReasonCode) -> None:
    assert codes(released(release_state(result=a_result(**{"binding_key": KEY, **result})))) == [code]


def test_neither_enforcement_nor_exemption_lets_a_secret_out() -> None:
    lax = a_policy(enforcement="audit", exemptions=(Exemption("ml", "llm", "INC-1", NOW + 100),))
    state = release_state(policies=(lax,), result=replace(BAD_NODE, binding_key=KEY))
    assert codes(released(state)) == [ReasonCode.NODE_NOT_VERIFIED]


def test_a_rebooted_or_recreated_node_gets_nothing() -> None:
    assert codes(released(release_state(node=a_node(claimed_boot_id="later")))) == [ReasonCode.BOOT_MISMATCH]
    found = codes(released(release_state(node=a_node(uid="new"))))
    assert found == [ReasonCode.NODE_MISMATCH, ReasonCode.RESULT_NODE_MISMATCH]


def test_the_shortest_lease_of_several_workloads_holds() -> None:
    short = a_workload(name="second", secrets={"llm/key": replace(a_workload().secrets["llm/key"], ttl_seconds=5)})
    decision = released(release_state(workloads=(a_workload(), short)))
    assert isinstance(decision, Release)
    assert decision.grants[0].ttl_seconds == 5


def test_two_secrets_that_workloads_give_one_file_name_are_not_released_together() -> None:
    second = a_workload(
        name="second", secrets={"other/key": replace(a_workload().secrets["llm/key"], name="other/key")}
    )
    state = release_state(workloads=(a_workload(), second))
    assert isinstance(released(state, secrets=("other/key",)), Release)
    assert codes(released(state, secrets=("llm/key", "other/key"))) == [ReasonCode.SECRET_NOT_ALLOWED]
