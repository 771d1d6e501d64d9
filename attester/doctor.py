"""What works on this machine, and what to do about the rest."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from attester.client import open_client
from attester.collectors.boot_log import collect_boot_log
from attester.collectors.host_facts import collect_host_facts
from attester.collectors.ima_log import collect_ima_log
from attester.collectors.node_token import read_token
from attester.csi_socket import require_guarded
from attester.keys import load_ak, read_endorsement_key
from attester.rounds import ask_challenge, enrolled_node, using_tpm
from attester.settings import AttesterSettings
from edges.private_files import require_private_directory
from verifier.wire.challenge import DEFAULT_PCRS
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `required`: without it this node cannot be verified."""

    name: str
    required: bool
    ok: bool
    detail: str
    code: ReasonCode | None

    def as_json(self) -> dict[str, str | bool | None]:
        """The check for `--json`."""
        code, remedy = (None, None) if self.code is None else (self.code.value, self.code.remedy)
        return {
            "name": self.name,
            "required": self.required,
            "ok": self.ok,
            "detail": self.detail,
            "code": code,
            "remedy": remedy,
        }


def examine(settings: AttesterSettings) -> tuple[Check, ...]:
    """Every check, in the order in which they are best mended. Each is tried, whatever the others gave."""
    checks: tuple[tuple[str, bool, Callable[[AttesterSettings], str]], ...] = (
        ("directories", True, _directories),
        ("tpm", True, _tpm),
        ("tpm-counter-policy", True, _counter_policy),
        ("tpm-pcr-bank", True, _pcr_bank),
        ("ek-certificate", False, _ek_certificate),
        ("boot-log", True, _boot_log),
        ("ima-log", False, _ima_log),
        ("host-facts", True, _host_facts),
        ("node-token", settings.node_token_path is not None, _node_token),
        ("verifier", True, _verifier),
        ("broker", settings.broker_url is not None, _broker),
        ("csi-socket", False, _csi_socket),
        ("enrolment", True, _enrolment),
        ("challenge", True, _challenge),
    )
    return tuple(_try(name, required, check, settings) for name, required, check in checks)


def _try(name: str, required: bool, check: Callable[[AttesterSettings], str], settings: AttesterSettings) -> Check:  # noqa: FBT001 - one row of the table above
    try:
        return Check(name, required, ok=True, detail=check(settings), code=None)
    except Refusal as refusal:
        return Check(name, required, ok=False, detail=refusal.failure.line(), code=refusal.code)


def _tpm(settings: AttesterSettings) -> str:
    with using_tpm(settings) as tpm:
        clock = tpm.read_clock()
    return f"{settings.tcti}: {clock.reset_count} resets, {clock.restart_count} restarts"


def _counter_policy(settings: AttesterSettings) -> str:
    with using_tpm(settings) as tpm:
        tpm.require_counter_policy()
    return "TPM2_PolicyCounterTimer is there: secrets die with the boot"


def _pcr_bank(settings: AttesterSettings) -> str:
    with using_tpm(settings) as tpm:
        values = tpm.read_pcrs("sha256", DEFAULT_PCRS)
    if not any(any(value) for value in values.values()):
        # Firmware that does not measure leaves every PCR at zero.
        raise Rejection(ReasonCode.BOOT_LOG_ABSENT, "tpm.pcrs", "all zero", "a measured boot")
    return "the SHA-256 bank is active and holds a measured boot"


def _ek_certificate(settings: AttesterSettings) -> str:
    with using_tpm(settings) as tpm:
        ek = read_endorsement_key(tpm, settings.ek_type)
    # The node id is the hash of the EK's public key: an inventory lists the TPM by either.
    listed = f"nodewarden inventory add {settings.node_name} --tenant T --cohort C --public-key-sha256 {ek.node_id}"
    if not ek.certificates:
        raise Rejection(ReasonCode.EK_CERTIFICATE_MISSING, f"{ek.kind.value} EK", "no certificate", listed)
    digest = hashlib.sha256(ek.certificates[0]).hexdigest()
    return f"{len(ek.certificates)} certificate(s), the EK's with SHA-256 {digest}; to list it: {listed}"


def _boot_log(settings: AttesterSettings) -> str:
    log = collect_boot_log(settings.boot_log_path, None).log
    if not isinstance(log, bytes):
        raise TypeError("the whole log was asked for")
    return f"{settings.boot_log_path}: {len(log)} bytes"


def _ima_log(settings: AttesterSettings) -> str:
    return f"{settings.ima_log_path}: {len(collect_ima_log(settings.ima_log_path))} bytes"


def _host_facts(settings: AttesterSettings) -> str:  # noqa: ARG001 - one of the table's checks
    return collect_host_facts().body.decode("ascii")


def _node_token(settings: AttesterSettings) -> str:
    return f"{settings.node_token_path}: {len(read_token(settings.node_token_path))} bytes"


def _directories(settings: AttesterSettings) -> str:
    require_private_directory(settings.state_dir)
    require_private_directory(settings.runtime_dir)
    return f"{settings.state_dir} and {settings.runtime_dir} are ours alone"


def _broker(settings: AttesterSettings) -> str:
    if settings.broker_url is None:
        return "no broker is set: this node fetches no secrets"
    timeouts = settings.connect_timeout_seconds, settings.request_timeout_seconds
    with open_client(settings.broker_url, settings.ca_file, *timeouts) as client:
        client.reach("/healthz")
    return f"{settings.broker_url} answers over TLS by the pinned CA"


def _csi_socket(settings: AttesterSettings) -> str:
    if settings.broker_url is None:
        return "no broker is set: this node fetches no secrets"
    require_guarded(settings.csi_socket.parent)
    return f"{settings.csi_socket.parent} is there for 'nodewarden attester csi', and root's"


def _verifier(settings: AttesterSettings) -> str:
    timeouts = settings.connect_timeout_seconds, settings.request_timeout_seconds
    with open_client(settings.verifier_url, settings.ca_file, *timeouts) as client:
        client.reach("/.well-known/jwks.json")
    return f"{settings.verifier_url} answers over TLS by the pinned CA"


def _challenge(settings: AttesterSettings) -> str:
    """Whether the verifier knows the AK that the state directory keeps, and what it asks for."""
    node = enrolled_node(settings)
    timeouts = settings.connect_timeout_seconds, settings.request_timeout_seconds
    with open_client(settings.verifier_url, settings.ca_file, *timeouts) as client:
        challenge = ask_challenge(node, client, int(time.time()))  # noqa: TID251 - this tries the machine's own clock
    if challenge.collect.node_token and settings.node_token_path is None:
        raise Rejection(ReasonCode.NODE_TOKEN_MISSING, "node_token_path", "not set", "the verifier asks for a token")
    return f"the verifier knows this node's key, and its clock: PCRs {challenge.collect.pcrs} asked for"


def _enrolment(settings: AttesterSettings) -> str:
    enrolment = enrolled_node(settings).enrolment
    with using_tpm(settings) as tpm:
        ek = read_endorsement_key(tpm, enrolment.ak.ek_kind)
        if ek.node_id != enrolment.node_id:
            raise Rejection(ReasonCode.AK_NOT_LOADABLE, "enrolment", ek.node_id, enrolment.node_id)
        with tpm.transient(load_ak(tpm, enrolment.ak)):
            pass
    return f"{enrolment.node_name} at {enrolment.verifier_id}, the attestation key loads"
