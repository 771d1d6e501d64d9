"""The verifier's settings: one frozen object, from one YAML file in the strict reading, unknown keys refused.

Nothing here weakens a check; times are bounded so that a result cannot live longer than the design allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from edges.private_files import require_unwritable
from edges.setting_files import read_text, validated
from policies.faults import BaselineFault
from policies.loader import read_yaml
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence
from verifier.wire.result import PROFILE_DEPLOYED, PROFILE_WORKING_GROUP

MAX_SETTINGS_BYTES = 256 * 1024
MAX_RESULT_SECONDS = 600
"""Evidence is never believed for longer, whatever a baseline says."""
NONCE_GRACE_SECONDS = 60
"""A nonce lives one interval and this much, for a node that is slow or late."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"\A[!-~]+\z")]
Directory = Annotated[Path, Field(strict=False)]


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ClusterSettings(_Section):
    """The cluster whose node tokens prove which node an attester runs on. With it they are required everywhere."""

    issuer: Name
    """`iss` of ServiceAccount tokens."""
    jwks_file: Directory
    """The cluster's public keys (the API server's /openid/v1/jwks), as a file."""
    namespace: Name
    service_account: Name
    """The attester's own ServiceAccount: no other pod's token counts."""
    audience: Name = "nodewarden-attester"


class Settings(_Section):
    """All that the verifier is told. Paths in the file are relative to the file."""

    issuer: Name
    """The verifier id: `iss` of every result, and what attesters are told apart from the network."""
    audience: Name
    """The cluster: `aud` of every result."""
    listen_host: Name = "127.0.0.1"
    listen_port: Annotated[int, Field(ge=0, le=65535)] = 8443
    tls_names: Annotated[tuple[Name, ...], Field(min_length=1, max_length=32, strict=False)] = (
        "localhost",
        "127.0.0.1",
    )
    """DNS names and addresses in the server certificate, where the verifier makes its own."""
    tls_certificate: Directory | None = None
    tls_key: Directory | None = None
    """A certificate chain and key (PEM) of your own; both or neither. Without, a CA is made under `tls_dir`."""
    tls_dir: Directory = Path("tls")
    keys_dir: Directory = Path("keys")
    database: Directory = Path("verifier.db")
    baselines_dir: Directory = Path("baselines")
    endorsements_dir: Directory = Path("endorsements")
    """TPM manufacturers' certificates: roots/, intermediates/, crls/, PEM or DER."""
    tokens_file: Directory = Path("tokens.json")
    audit_checkpoint_file: Directory = Path("audit-checkpoints.jsonl")
    """Signed heads of the audit chain are appended here; put it where the verifier's owner cannot rewrite it."""
    admission: Literal["inventory", "manual", "manufacturer"] = "inventory"
    interval_seconds: Annotated[int, Field(ge=10, le=300)] = 60
    """How often nodes attest."""
    profile: Literal["deployed", "working-group"] = "deployed"
    """The EAR dialect of results."""
    cluster: ClusterSettings | None = None
    anonymous_requests_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 60
    """For each address, over all routes that need no token. Evidence and challenges are known by the AK instead."""
    refused_requests_per_minute: Annotated[int, Field(ge=1, le=100_000)] = 120
    """For each address: beyond so many refusals it is told no reasons. What is accepted is never limited by address."""
    evidence_per_node_per_minute: Annotated[int, Field(ge=10, le=100_000)] = 30
    """How often one node may prove itself, on demand and by hand too; it may ask for challenges, and wait to be asked,
    twice as often. More is told to wait; no verdict changes."""
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 12_000

    @property
    def eat_profile(self) -> str:
        """The profile URI of `profile`."""
        return PROFILE_DEPLOYED if self.profile == "deployed" else PROFILE_WORKING_GROUP

    @property
    def nonce_seconds(self) -> int:
        """How long a nonce lives."""
        return self.interval_seconds + NONCE_GRACE_SECONDS


_PATHS = (
    "tls_certificate",
    "tls_key",
    "tls_dir",
    "keys_dir",
    "database",
    "baselines_dir",
    "endorsements_dir",
    "tokens_file",
    "audit_checkpoint_file",
)


def load_settings(path: Path) -> Settings:
    """The settings in the YAML file at `path`, its relative paths resolved against the file's own directory.

    Raises MalformedEvidence `setting-invalid` naming the field, Rejection `file-mode-unsafe`, Unavailable
    `file-unreadable`.
    """
    require_unwritable(path)
    try:
        fields = read_yaml(read_text(path, MAX_SETTINGS_BYTES, ReasonCode.SETTING_INVALID), path.name)
    except BaselineFault as error:
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), str(error)) from error
    settings = validated(Settings, fields, path.name)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, "tls_certificate, tls_key", "one", "both or neither")
    base = path.resolve().parent
    resolved = {name: base / value for name in _PATHS if (value := getattr(settings, name)) is not None}
    if settings.cluster is not None:
        jwks = base / settings.cluster.jwks_file
        resolved["cluster"] = settings.cluster.model_copy(update={"jwks_file": jwks})
    return settings.model_copy(update=resolved)
