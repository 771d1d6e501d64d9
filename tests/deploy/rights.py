"""What each identity may do in the cluster, once more and with the reason: the chart must say exactly this.

A right is (API group, resource, verb, the one name it is for, or "*" where any). A resource named with a namespace
("nodewarden-system:leases") is granted in that namespace only.
"""

from __future__ import annotations

from collections.abc import Mapping

Right = tuple[str, str, str, str]

_OURS = "nodewarden.dev"
_SYSTEM = "nodewarden-system:"


def _each(
    group: str, resources: tuple[str, ...], verbs: tuple[str, ...], names: tuple[str, ...] = ("*",)
) -> set[Right]:
    return {(group, resource, verb, name) for resource in resources for verb in verbs for name in names}


_FOLLOW = ("list", "watch")
_DECIDES = (
    # What decisions read, held in memory (admission.live_view).
    _each("", ("nodes",), _FOLLOW)
    | _each("", ("pods",), _FOLLOW)
    | _each(_OURS, ("nodetrustpolicies", "sensitiveworkloads", "nodeattestations"), _FOLLOW)
    | _each("coordination.k8s.io", (_SYSTEM + "leases",), _FOLLOW, ("nodewarden-results",))
    # Events about what was denied, on the pod and on its owner (admission.cluster_events).
    | _each("", ("events",), ("create",))
    | _each("", ("pods",), ("get",))
)

RIGHTS: Mapping[str, set[Right]] = {
    "nodewarden-webhook": _DECIDES
    # Its own certificate: a Secret made by the chart, and the CA in two webhook configurations.
    | _each("", (_SYSTEM + "secrets",), ("get", "update"), ("nodewarden-webhook-tls",))
    | _each(
        "admissionregistration.k8s.io",
        ("validatingwebhookconfigurations", "mutatingwebhookconfigurations"),
        ("get", "update"),
        ("nodewarden",),
    ),
    "nodewarden-broker": _DECIDES
    # Whether a pod's token still stands (admission.token_reviews).
    | _each("authentication.k8s.io", ("tokenreviews",), ("create",))
    # Leases are recorded, found again and in the end forgotten (cluster_leases); orders are answered (revocations).
    | _each(_OURS, ("secretreleases",), (*_FOLLOW, "get", "create", "delete"))
    | _each(_OURS, ("secretreleases/status",), ("patch",)),
    "nodewarden-controller": (
        # Labels and the taint (node_reconciler).
        _each("", ("nodes",), (*_FOLLOW, "patch"))
        # Gates are taken off by a patch; pods are ended after an eviction was refused (gates, eviction).
        | _each("", ("pods",), (*_FOLLOW, "patch", "delete"))
        | _each("", ("pods/eviction",), ("create",))
        | _each("events.k8s.io", ("events",), ("create",))
        | _each(_OURS, ("nodetrustpolicies", "sensitiveworkloads", "secretreleases"), _FOLLOW)
        | _each(_OURS, ("nodeattestations",), (*_FOLLOW, "create", "delete"))
        | _each(_OURS, ("verifiednodesets",), ("create", "patch"))
        | _each(
            _OURS,
            tuple(
                f"{plural}/status"
                for plural in ("nodeattestations", "nodetrustpolicies", "secretreleases", "sensitiveworkloads")
            ),
            ("patch",),
        )
        # Which replica leads, and that the verifier's stream lives (leadership, heartbeat). A name cannot limit create.
        | _each("coordination.k8s.io", (_SYSTEM + "leases",), ("create",))
        | _each(
            "coordination.k8s.io",
            (_SYSTEM + "leases",),
            ("get", "update", "patch"),
            ("nodewarden-controller", "nodewarden-results"),
        )
        | _each("", (_SYSTEM + "configmaps",), _FOLLOW, ("nodewarden-privileged-allow-list",))
    ),
    # Speak to the verifier and to the node's TPM, never to the API server.
    "nodewarden-verifier": set(),
    "attester": set(),
}

POLICY_REPORTS: set[Right] = (
    # What the controller gets with `policyReports.enabled` (policy_reports). A name cannot limit create.
    _each("wgpolicyk8s.io", ("policyreports",), ("create",))
    | _each("wgpolicyk8s.io", ("policyreports",), ("list", "patch", "delete"), ("nodewarden",))
)
