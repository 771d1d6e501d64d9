"""Every reason for which evidence, a request or a pod is refused, each with what to do about it.

Append-only: a code that was ever published keeps its meaning. One code stands for one failed claim, so that a
denial can be looked up, counted and tested. The remedy is written for the person who gets the denial.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class ReasonCode(StrEnum):
    """A refusal's stable name (kebab-case) and, as `remedy`, the next step for a person."""

    remedy: str

    def __new__(cls, value: str, remedy: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.remedy = remedy
        return member

    # --- the form of a message (MalformedEvidence): nothing of it was believed ---
    JSON_INVALID = "json-invalid", "Send UTF-8 JSON without duplicate keys, as the wire format describes."
    SCHEMA_MISMATCH = "schema-mismatch", "Send exactly the documented fields with the documented types."
    VERSION_UNSUPPORTED = "version-unsupported", "Upgrade the older of attester and verifier."
    BODY_TOO_LARGE = (
        "body-too-large",
        "Send less; the limit is in the message. A boot log can be sent once and named by digest.",
    )
    ENCODING_NOT_CANONICAL = (
        "encoding-not-canonical",
        "Encode bodies as base64url without padding and hex in lower case.",
    )
    ITEM_KIND_UNKNOWN = (
        "item-kind-unknown",
        "Send only item kinds that this verifier knows; upgrade the verifier for newer ones.",
    )
    ITEM_DUPLICATED = "item-duplicated", "Send each kind and index once."
    ITEM_MISSING = "item-missing", "Send every item that the challenge asks for."
    ITEM_NOT_REQUESTED = "item-not-requested", "Send only what the challenge asks for."
    ITEM_INDEX_INVALID = "item-index-invalid", "Number the items of one kind 0, 1, 2, ... without gaps."
    COMPRESSION_INVALID = "compression-invalid", "Send a single zstd frame that declares its size within the limit."
    ATTEST_MALFORMED = (
        "attest-malformed",
        "Collect again; if it persists, the TPM driver stack returns structures we cannot read.",
    )
    SIGNATURE_MALFORMED = "signature-malformed", "Collect again; the TPMT_SIGNATURE does not parse."
    PUBLIC_AREA_MALFORMED = "public-area-malformed", "Send the TPM2B_PUBLIC as the TPM returned it."
    BOOT_LOG_MALFORMED = "boot-log-malformed", "Check that the boot log file is read to its end and was not edited."
    HOST_FACTS_MALFORMED = "host-facts-malformed", "Use an attester of the verifier's version."
    CERTIFICATE_MALFORMED = (
        "certificate-malformed",
        "Read the EK certificate from the TPM again, or obtain it from the manufacturer.",
    )
    RECORDING_INCOMPLETE = "recording-incomplete", "Record the evidence again with 'nodewarden attester collect'."

    # --- requests and nonces ---
    NONCE_UNKNOWN = "nonce-unknown", "Ask for a new challenge and collect evidence for it."
    NONCE_USED = "nonce-used", "Ask for a new challenge: each nonce is good for one piece of evidence."
    NONCE_EXPIRED = "nonce-expired", "Ask for a new challenge and answer it before it expires."
    NONCE_WRONG_NODE = "nonce-wrong-node", "Answer only challenges that were issued to this node."
    NONCE_TRIES_EXHAUSTED = (
        "nonce-tries-exhausted",
        "Ask for a new challenge; too much invalid evidence was sent for this one.",
    )
    CHALLENGE_OUTDATED = (
        "challenge-outdated",
        "Ask for a new challenge: a baseline that came into force since needs PCRs that this one did not ask for.",
    )
    REQUEST_SIGNATURE_INVALID = "request-signature-invalid", "Sign the request with the enrolled attestation key."
    REQUEST_NOT_FRESH = "request-not-fresh", "Set the machine's clock, then ask again."
    REQUEST_REPLAYED = "request-replayed", "Send each signed request once."
    STREAMS_EXHAUSTED = "streams-exhausted", "Close watches that are no longer needed, then try again."
    RATE_LIMITED = "rate-limited", "Wait and try again; the answer says how long."
    NODE_UNKNOWN = "node-unknown", "Enrol the node first with 'nodewarden attester enrol'."
    NODE_REVOKED = "node-revoked", "Ask the operator why the node was revoked; 'nodewarden nodes approve' restores it."
    AUTHENTICATION_REQUIRED = "authentication-required", "Send a bearer token whose role allows this."
    ROLE_FORBIDDEN = "role-forbidden", "Use a token whose role allows this."
    ROUTE_UNKNOWN = "route-unknown", "Check the address and the method."
    STORE_UNAVAILABLE = "store-unavailable", "Try again; if it persists, look at the verifier's database."
    INTERNAL_ERROR = "internal-error", "Report the request id to the operator; nothing was granted."

    # --- enrolment ---
    EK_CERTIFICATE_MISSING = (
        "ek-certificate-missing",
        "List the EK's public key in the inventory, or provide its certificate.",
    )
    EK_CERTIFICATE_KEY_MISMATCH = "ek-certificate-key-mismatch", "Send the certificate of the EK that is in this TPM."
    EK_CHAIN_UNTRUSTED = (
        "ek-chain-untrusted",
        "Add the TPM manufacturer's root and intermediates to the verifier's roots.",
    )
    EK_CERTIFICATE_EXPIRED = "ek-certificate-expired", "Obtain a current certificate from the manufacturer."
    EK_CERTIFICATE_REVOKED = "ek-certificate-revoked", "Replace the TPM: its manufacturer revoked its certificate."
    EK_CERTIFICATE_UNSUITABLE = (
        "ek-certificate-unsuitable",
        "Use the certificate of an endorsement key, not of a CA or another key.",
    )
    EK_ATTRIBUTES_UNSUITABLE = "ek-attributes-unsuitable", "Use an EK made from a TCG EK credential profile template."
    EK_ALGORITHM_UNSUPPORTED = "ek-algorithm-unsupported", "Use an RSA-2048, P-256 or P-384 EK."
    AK_ATTRIBUTES_UNSUITABLE = "ak-attributes-unsuitable", "Let 'nodewarden attester enrol' make the attestation key."
    AK_ALGORITHM_UNSUPPORTED = "ak-algorithm-unsupported", "Use a P-256 or RSA-2048 attestation key."
    ENROLMENT_UNKNOWN = "enrolment-unknown", "Start the enrolment again."
    ENROLMENT_EXPIRED = "enrolment-expired", "Start the enrolment again and answer within five minutes."
    ENROLMENT_USED = "enrolment-used", "Start the enrolment again: each credential may be tried once."
    CREDENTIAL_MISMATCH = (
        "credential-mismatch",
        "Start again; the TPM did not prove that it holds both the EK and the AK.",
    )
    EK_NOT_IN_INVENTORY = (
        "ek-not-in-inventory",
        "Add the node with 'nodewarden inventory add' after checking which machine it is.",
    )
    NODE_NAME_MISMATCH = "node-name-mismatch", "Enrol under the node name that the inventory gives to this TPM."
    NODE_REASSIGNED = (
        "node-reassigned",
        "Wait for the node's next attestation: the inventory moved it to another tenant or cohort.",
    )
    NODE_NAME_CONFLICT = (
        "node-name-conflict",
        "Another TPM holds this name; settle it with 'nodewarden nodes replace' or 'nodes forget'.",
    )
    EK_CONFLICT = "ek-conflict", "This TPM is enrolled under another name; settle it with 'nodewarden nodes forget'."
    NODE_TOKEN_MISSING = "node-token-missing", "Mount the projected ServiceAccount token into the attester."
    NODE_TOKEN_INVALID = "node-token-invalid", "Use the attester's own projected token with the verifier's audience."
    NODE_TOKEN_NAME_MISMATCH = "node-token-name-mismatch", "Run the attester on the node that it enrolled."
    NODE_NAME_INVALID = "node-name-invalid", "Use a Kubernetes node name: lower-case letters, digits, '-' and '.'."

    NODE_NOT_ADMITTED = "node-not-admitted", "An operator must admit the node: 'nodewarden nodes approve'."
    NODE_ENROLLED_ANEW = "node-enrolled-anew", "Let the node attest with its new key; what it proved before is void."
    NODE_REMOVED = "node-removed", "Enrol the machine again; its former TPM was forgotten or replaced."
    SCHEMA_NEWER = "schema-newer", "Run the release that wrote this database, or a later one."

    # --- the quote ---
    QUOTE_SIGNATURE_INVALID = "quote-signature-invalid", "Quote with the enrolled AK; if it persists, enrol again."
    QUOTE_SCHEME_MISMATCH = "quote-scheme-mismatch", "Sign with the scheme that the AK was made with."
    QUOTE_NOT_TPM_GENERATED = "quote-not-tpm-generated", "Only a structure that a TPM made is accepted."
    QUOTE_TYPE_WRONG = "quote-type-wrong", "Send a TPM2_Quote, not another attestation structure."
    QUOTE_BINDING_MISMATCH = (
        "quote-binding-mismatch",
        "Collect again for the current challenge; something between attester and verifier changed the evidence.",
    )
    CLOCK_OUT_OF_RANGE = "clock-out-of-range", "Have the TPM looked at: its clock shows a time that no TPM reaches."
    QUOTE_SIGNER_NOT_UNDER_EK = "quote-signer-not-under-ek", "Make the AK as a child of the enrolled EK."
    PCR_SELECTION_MISMATCH = "pcr-selection-mismatch", "Quote exactly the PCRs that the challenge asks for."
    PCR_BANK_INACTIVE = "pcr-bank-inactive", "Activate the TPM's SHA-256 PCR bank in the firmware settings."
    PCR_DIGEST_MISMATCH = "pcr-digest-mismatch", "Collect again; PCR values and quote were taken at different moments."
    COUNTER_REGRESSED = "counter-regressed", "Enrol the node again after finding out why its TPM's counters went back."
    CLOCK_REGRESSED = (
        "clock-regressed",
        "Collect again; if it persists, the TPM's clock is being set back within one boot.",
    )

    # --- the binding key ---
    BINDING_KEY_SIGNATURE_INVALID = (
        "binding-key-signature-invalid",
        "Restart the attester so that it certifies a new binding key.",
    )
    BINDING_KEY_UNSUITABLE = (
        "binding-key-unsuitable",
        "Restart the attester so that it makes a binding key from the required template.",
    )
    BINDING_KEY_NOT_NULL_PRIMARY = (
        "binding-key-not-null-primary",
        "The binding key must be a primary of the null hierarchy.",
    )
    BINDING_KEY_POLICY_MISMATCH = (
        "binding-key-policy-mismatch",
        "Restart the attester: its binding key belongs to another boot.",
    )
    BINDING_KEY_CERTIFY_MISMATCH = (
        "binding-key-certify-mismatch",
        "Restart the attester: the certificate is not of this key and node.",
    )
    BINDING_KEY_COUNTERS_MISMATCH = (
        "binding-key-counters-mismatch",
        "Restart the attester: the key was certified in another boot.",
    )

    # --- the boot log against the quote ---
    BOOT_LOG_ABSENT = (
        "boot-log-absent",
        "Enable the TPM event log in firmware and kernel, and let the attester read it.",
    )
    BOOT_LOG_UNKNOWN_DIGEST = "boot-log-unknown-digest", "Send the whole boot log once more."
    BOOT_LOG_BANK_MISSING = "boot-log-bank-missing", "Enable SHA-256 in the firmware's event log."
    PCR_REPLAY_MISMATCH = (
        "pcr-replay-mismatch",
        "The boot log is not the one that the TPM measured; reboot, and investigate if it persists.",
    )
    PCR_WITHOUT_EVENTS = (
        "pcr-without-events",
        "Something was measured that the boot log does not show; investigate the machine.",
    )
    EVENT_DIGEST_MISMATCH = (
        "event-digest-mismatch",
        "An event's content is not what was measured: the log was edited, or firmware writes it wrongly.",
    )
    EVENT_TYPE_FORGED = "event-type-forged", "An event carries another type than its digest shows; the log was edited."
    EVENT_NOT_ALLOWED = "event-not-allowed", "The log has an event that may not occur there; see PCR and index."
    SECURE_BOOT_LOG_INCONSISTENT = (
        "secure-boot-log-inconsistent",
        "The Secure Boot measurements contradict themselves; update the firmware.",
    )

    # --- appraisal against a baseline ---
    BASELINE_NONE = "baseline-none", "Assign a baseline to this node's cohort."
    BASELINE_NOT_YET_VALID = "baseline-not-yet-valid", "Wait for the baseline's notBefore, or assign one that is valid."
    BASELINE_EXPIRED = "baseline-expired", "Release a new version of the baseline."
    BASELINE_INVALID = "baseline-invalid", "Correct the baseline; 'nodewarden policy lint' shows each fault."
    SECURE_BOOT_OFF = "secure-boot-off", "Turn Secure Boot on in the firmware settings and reboot."
    SECURE_BOOT_UNKNOWN = (
        "secure-boot-unknown",
        "The log cannot tell the Secure Boot state; update firmware and boot loader.",
    )
    SECURE_BOOT_SETUP_MODE = "secure-boot-setup-mode", "Enrol Secure Boot keys in the firmware and reboot."
    SECURE_BOOT_AUTHORITY_UNTRUSTED = (
        "secure-boot-authority-untrusted",
        "The image was allowed by a certificate outside the baseline; sign it with a listed one.",
    )
    SECURE_BOOT_DBX_OUTDATED = "secure-boot-dbx-outdated", "Install the current Secure Boot revocation list (dbx)."
    FIRMWARE_NOT_ALLOWED = (
        "firmware-not-allowed",
        "Install a firmware version that the baseline lists, or release a baseline with this one.",
    )
    BOOT_IMAGE_NOT_ALLOWED = (
        "boot-image-not-allowed",
        "Install the listed boot loader and kernel, or release a baseline with this one.",
    )
    BOOT_IMAGE_MISSING = "boot-image-missing", "The log shows no such image; check how the machine boots."
    CMDLINE_UNKNOWN = (
        "cmdline-unknown",
        "The log does not cover the kernel command line; boot through GRUB with measurements, or a UKI.",
    )
    CMDLINE_ARGUMENT_MISSING = "cmdline-argument-missing", "Add the required kernel argument and reboot."
    CMDLINE_ARGUMENT_FORBIDDEN = "cmdline-argument-forbidden", "Remove the kernel argument and reboot."
    CMDLINE_ARGUMENT_NOT_ALLOWED = (
        "cmdline-argument-not-allowed",
        "Remove the kernel argument, or release a baseline that allows it.",
    )
    TPM_MANUFACTURER_NOT_ALLOWED = (
        "tpm-manufacturer-not-allowed",
        "Use a TPM of a listed manufacturer, or release a baseline with this one.",
    )
    TPM_UNENDORSED = "tpm-unendorsed", "The baseline requires an EK certificate chain; provide the TPM's certificate."
    BOOT_FILE_NOT_ALLOWED = (
        "boot-file-not-allowed",
        "Compare what the loader read (PCR 9: initrd, kernel, grub.cfg) with the baseline, or release one with these.",
    )
    SECURE_BOOT_SHIM_VALIDATION_OFF = (
        "secure-boot-shim-validation-off",
        "Let shim check images again with 'mokutil --enable-validation' and reboot.",
    )
    MOK_NOT_ALLOWED = (
        "mok-not-allowed",
        "Compare shim's lists and settings (PCR 14) with the baseline's mok, or release a baseline with these.",
    )

    # --- admission ---
    NODE_NOT_VERIFIED = "node-not-verified", "See 'nodewarden nodes explain NODE' for what the node failed."
    NODE_RUNS_INTRUDER = (
        "node-runs-intruder",
        "Move the pods that could act upon the node off it, or list them in nodewarden-privileged-allow-list.",
    )
    RESULT_MISSING = "result-missing", "Enrol the node and let it attest."
    RESULT_SIGNATURE_INVALID = "result-signature-invalid", "Only results signed by the configured verifier count."
    RESULT_MALFORMED = "result-malformed", "Use a verifier of a supported version."
    RESULT_AUDIENCE_WRONG = "result-audience-wrong", "Configure verifier and cluster with the same audience."
    RESULT_EXPIRED = "result-expired", "Check that the node's attester runs and reaches the verifier."
    RESULT_ROLLED_BACK = (
        "result-rolled-back",
        "An older result was offered than one already seen; find out who replays it.",
    )
    RESULT_FROM_FUTURE = "result-from-future", "Set the clocks of verifier and cluster; the result's time has not come."
    RESULT_WITHOUT_BINDING_KEY = (
        "result-without-binding-key",
        "Let the attester certify a binding key: without one there is nothing to encrypt a secret to.",
    )
    RESULT_VALIDITY_TOO_SHORT = "result-validity-too-short", "Try again after the node's next attestation."
    RESULT_TOO_OLD = "result-too-old", "Check that the node attests at least as often as the policy's maxEvidenceAge."
    RESULT_NODE_MISMATCH = (
        "result-node-mismatch",
        "The result belongs to another node object; let the node attest again.",
    )
    BOOT_MISMATCH = "boot-mismatch", "The node rebooted after it was attested; wait for its next attestation."
    BASELINE_NOT_ACCEPTED = "baseline-not-accepted", "Move the node to a baseline that the policy lists."
    BASELINE_BELOW_FLOOR = "baseline-below-floor", "Move the node to a baseline version at or above the policy's floor."
    POLICY_UNKNOWN = "policy-unknown", "Create the NodeTrustPolicy that the SensitiveWorkload names."
    NODE_UNKNOWN_TO_CLUSTER = (
        "node-unknown-to-cluster",
        "Bind to a node that exists; if it was just created, try again.",
    )
    POD_UNKNOWN = "pod-unknown", "Try again: the pod is not in the admission view yet."
    POD_UID_MISMATCH = "pod-uid-mismatch", "The pod was re-created; bind the current one."
    POD_DELETING = "pod-deleting", "Nothing is bound or released to a pod that is being deleted."
    BINDING_UID_MISSING = "binding-uid-missing", "Name the pod's UID in the Binding."
    BINDING_METADATA_FORBIDDEN = (
        "binding-metadata-forbidden",
        "Remove nodewarden keys from the Binding's labels and annotations.",
    )
    NODE_NAME_SET_DIRECTLY = "node-name-set-directly", "Leave spec.nodeName empty and let the scheduler place the pod."
    WORKLOAD_IMAGE_NOT_ALLOWED = (
        "workload-image-not-allowed",
        "Use an image that the SensitiveWorkload lists, by digest.",
    )
    WORKLOAD_TOLERATION_FORBIDDEN = (
        "workload-toleration-forbidden",
        "Remove tolerations of the unverified taint from sensitive pods.",
    )
    WORKLOAD_LABEL_FORGED = (
        "workload-label-forged",
        "Remove the nodewarden label: no SensitiveWorkload governs this ServiceAccount.",
    )
    WORKLOAD_LABEL_CHANGED = (
        "workload-label-changed",
        "Re-create the pod: its nodewarden label, annotation and stricter policy cannot be changed.",
    )
    MIN_BASELINE_INVALID = "min-baseline-invalid", "Write the annotation as NAME@MAJOR.MINOR.PATCH."
    POD_IDENTITY_CHANGED = (
        "pod-identity-changed",
        "Leave the pod's serviceAccountName and nodeName as they are; create another pod instead.",
    )
    REVIEW_MALFORMED = (
        "review-malformed",
        "Send an AdmissionReview v1 for a resource that the webhook is registered for.",
    )
    MANIFEST_INVALID = "manifest-invalid", "Correct the manifest; the message names file and field."
    VIEW_STALE = "view-stale", "Try again: admission has lost touch with the API server; see its log if this stays."
    RESULTS_STALE = (
        "results-stale",
        "Check that the nodewarden controller runs and that its stream from the verifier is alive.",
    )
    ACCESS_FORBIDDEN = "access-forbidden", "Open this way in the SensitiveWorkload's access, if that is meant."
    GATE_REMOVED = (
        "gate-removed",
        "Leave the gate alone: the controller removes it once a verified node can take the pod.",
    )
    NAMESPACE_LABEL_REMOVED = (
        "namespace-label-removed",
        "Delete the SensitiveWorkloads that govern the namespace first, then take the label off by breaking the glass.",
    )
    NAMESPACE_GOVERNED = "namespace-governed", "Delete the SensitiveWorkloads that govern the namespace first."
    KUBERNETES_REFUSED = (
        "kubernetes-refused",
        "See the API server's answer; check RBAC and that the CRDs are installed.",
    )
    KUBERNETES_UNREACHABLE = (
        "kubernetes-unreachable",
        "Check that the API server answers and that its address and CA are right.",
    )

    # --- secret release ---
    TOKEN_INVALID = "token-invalid", "Use the pod's own projected token with the broker's audience."
    TOKEN_NOT_POD_BOUND = "token-not-pod-bound", "Use a projected token: legacy ServiceAccount tokens name no pod."
    TOKEN_DIGEST_MISMATCH = "token-digest-mismatch", "Sign the digest of the token that is presented."
    POSSESSION_NOT_PROVED = "possession-not-proved", "Ask through the attester of the node where the pod runs."
    NODE_MISMATCH = "node-mismatch", "Token, pod and proving node must be the same node."
    SECRET_NOT_ALLOWED = "secret-not-allowed", "List the secret in the SensitiveWorkload of this ServiceAccount."
    SECRET_UNKNOWN = "secret-unknown", "Store the secret in the broker's backend first."
    LEASE_HELD = "lease-held", "The secret is leased to another binding key; wait for that lease to end."
    LEASE_REVOKED = (
        "lease-revoked",
        "Re-create the pod: its node lost trust while it held the secret, and it does not get it again.",
    )
    LEASE_NOT_RECORDED = (
        "lease-not-recorded",
        "Try again; if it persists, see whether the broker may create SecretRelease objects and their kind is installed.",
    )
    SECRET_STORE_INVALID = "secret-store-invalid", "Restore the sealed secret file and its key from backup."

    # --- the attester's own machine ---
    TPM_UNAVAILABLE = "tpm-unavailable", "Load the TPM driver and give the attester access to /dev/tpmrm0."
    TPM_FAILED = "tpm-failed", "See the TPM's response code; 'nodewarden attester doctor' checks what works."
    TPM_COMMAND_MISSING = (
        "tpm-command-missing",
        "Use a TPM with TPM2_PolicyCounterTimer: without it no key dies with the boot, and there is no weaker way.",
    )
    AK_NOT_LOADABLE = (
        "ak-not-loadable",
        "The TPM was cleared or is another one; run 'nodewarden attester enrol' to make a new attestation key.",
    )
    LOG_UNREADABLE = "log-unreadable", "Mount securityfs and give the attester read access to the log."
    LOG_TOO_LARGE = (
        "log-too-large",
        "The log exceeds the limit in the message; raise the machine's limit only after looking at the log.",
    )
    VERIFIER_UNREACHABLE = "verifier-unreachable", "Check the verifier's address, the network and the pinned CA."
    BROKER_UNREACHABLE = "broker-unreachable", "Check the broker's address, the network and the pinned CA."
    BROKER_REFUSED = "broker-refused", "See the broker's own reason in the message; upgrade the older of the two."
    VERIFIER_REFUSED = "verifier-refused", "See the verifier's own reason in the message."
    VERIFIER_ID_MISMATCH = (
        "verifier-id-mismatch",
        "Correct verifier_id in the attester's settings, or find out which verifier answers at that address.",
    )
    NOT_ENROLLED = "not-enrolled", "Run 'nodewarden attester enrol' first."
    SECRET_DOES_NOT_OPEN = (
        "secret-does-not-open",
        "The machine rebooted since the secret was released; ask for it again.",
    )
    JWE_MALFORMED = "jwe-malformed", "Upgrade the older of attester and broker: the released secret has another form."
    SETTING_INVALID = "setting-invalid", "Correct the setting that the message names."
    FILE_MODE_UNSAFE = (
        "file-mode-unsafe",
        "Let nobody but its owner write the file (chmod go-w), nor read it where it holds a key (chmod 600).",
    )
    ADDRESS_UNAVAILABLE = (
        "address-unavailable",
        "Stop what listens at this address already, or set another listen_host or listen_port.",
    )
    FILE_UNREADABLE = "file-unreadable", "Check that the file exists and is readable."
    MOUNT_REQUEST_MALFORMED = (
        "mount-request-malformed",
        "Use a version of the Secrets Store CSI Driver that speaks the provider interface v1alpha1.",
    )
    MOUNTS_EXHAUSTED = (
        "mounts-exhausted",
        "Wait: the kubelet asks again once other pods of the node have their secrets.",
    )
    POD_TOKEN_MISSING = (
        "pod-token-missing",
        "Let the CSIDriver object secrets-store.csi.k8s.io ask for tokens of this audience (tokenRequests).",
    )
    CSI_DRIVER_MISSING = (
        "csi-driver-missing",
        "Install the Secrets Store CSI Driver, or set csi_socket to a folder where it looks for providers.",
    )
    AUDIT_CHAIN_BROKEN = "audit-chain-broken", "The audit log was altered; compare with the last external checkpoint."
