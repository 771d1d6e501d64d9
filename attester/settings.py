"""The attester's settings: one frozen object from a YAML file and the environment, each field with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from attester.templates import AkType, EkType
from edges.private_files import require_unwritable
from edges.setting_files import read_fields, validated
from verifier.wire.messages import NodeName

ENVIRONMENT_PREFIX = "NODEWARDEN_ATTESTER_"
DEFAULT_PATH = Path("/etc/nodewarden/attester.yaml")

_Path = Annotated[Path, Field(strict=False)]


class AttesterSettings(BaseModel):
    """Nothing here weakens verification: what counts as evidence the verifier and its baseline decide."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    verifier_url: str
    """https address of the verifier, without a path."""
    verifier_id: Annotated[str, Field(min_length=1, max_length=256, pattern=r"\A[\x21-\x7e]+\z")]
    """The verifier's `iss`. Bound into every quote, so that evidence made for one verifier is void at another; taken
    from here only, never from what a verifier says of itself."""
    ca_file: _Path
    """PEM of the CA that signed the verifier's (and broker's) TLS certificate. No other CA is trusted."""
    broker_url: str | None = None
    """https address of the secret broker; null on nodes that fetch no secrets."""
    node_name: NodeName
    """The Kubernetes node's name, as the inventory has it."""
    tcti: Annotated[str, Field(min_length=1, max_length=512)] = "device:/dev/tpmrm0"
    """How to reach the TPM: a TCTI string. The default is the kernel's resource manager."""
    ek_type: Annotated[EkType, Field(strict=False)] = EkType.RSA_2048
    """Which EK is the node's identity. RSA-2048: nearly every TPM has its certificate."""
    ak_type: Annotated[AkType, Field(strict=False)] = AkType.P_256
    """Which AK to make at enrolment. P-256: a discrete TPM signs with it several times faster than with RSA."""
    state_dir: _Path = Path("/var/lib/nodewarden-attester")
    """Keeps the AK blob and the enrolment. Mode 0700."""
    runtime_dir: _Path = Path("/run/nodewarden-attester")
    """Keeps what derives this boot's binding key. Mode 0700, on a tmpfs, so that it is gone after a reboot."""
    boot_log_path: _Path = Path("/sys/kernel/security/tpm0/binary_bios_measurements")
    """The firmware's event log."""
    ima_log_path: _Path = Path("/sys/kernel/security/ima/binary_runtime_measurements")
    """The kernel's IMA log; `collect` records it."""
    node_token_path: _Path | None = None
    """The attester pod's projected ServiceAccount token (audience nodewarden-attester); null outside a cluster."""
    csi_socket: _Path = Path("/etc/kubernetes/secrets-store-csi-providers/nodewarden.sock")
    """Where `csi` listens for the Secrets Store CSI Driver. NAME.sock is the provider NAME of a SecretProviderClass."""
    connect_timeout_seconds: Annotated[int, Field(ge=1, le=60)] = 5
    """How long to wait for a connection."""
    request_timeout_seconds: Annotated[int, Field(ge=1, le=120)] = 30
    """How long to wait for each part of an answer."""
    retry_first_seconds: Annotated[int, Field(ge=1, le=60)] = 2
    """First pause of the daemon after a failure; it doubles, with jitter."""
    retry_longest_seconds: Annotated[int, Field(ge=1, le=600)] = 60
    """Longest such pause. Below the results' life of five minutes, so that a short outage loses no node."""

    attest_now: bool = True
    """Whether `run` also lets the verifier ask for evidence before the interval is over. Costs a signature of the TPM
    and a request each minute; without it a changed baseline reaches the node's verdict an interval later."""

    @field_validator("verifier_url", "broker_url")
    @classmethod
    def _https_only(cls, value: str | None) -> str | None:
        if value is not None and re.fullmatch(r"https://[A-Za-z0-9.\-\[\]:]+/?", value) is None:
            raise ValueError("must be an https address without path, user or query")
        return None if value is None else value.rstrip("/")

    @model_validator(mode="after")
    def _retry_in_order(self) -> Self:
        if self.retry_first_seconds > self.retry_longest_seconds:
            raise ValueError("retry_first_seconds exceeds retry_longest_seconds")
        return self


def load_settings(path: Path, environment: Mapping[str, str]) -> AttesterSettings:
    """The settings of the YAML file `path`, each overridden by NODEWARDEN_ATTESTER_<FIELD> where that is set.

    Raises MalformedEvidence `setting-invalid` (unknown or missing key, wrong type, unknown variable of our prefix,
    duplicate key, no mapping), Rejection `file-mode-unsafe` (others may write the file or the CA file), Unavailable
    `file-unreadable`.
    """
    require_unwritable(path)
    fields = read_fields(path)
    for variable, value in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            fields[name] = _from_environment(name, value)
    settings = validated(AttesterSettings, fields, "settings")
    require_unwritable(settings.ca_file)
    return settings


def _from_environment(name: str, value: str) -> str | int | bool:
    field = AttesterSettings.model_fields.get(name)
    if field is not None and field.annotation is int and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    if field is not None and field.annotation is bool and value in ("true", "false"):
        return value == "true"
    return value


def process_environment() -> Mapping[str, str]:
    """This process's environment, for `load_settings`."""
    return os.environ
