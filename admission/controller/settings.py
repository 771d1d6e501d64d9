"""Settings of `nodewarden admission controller`: one YAML file, frozen, unknown keys refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from admission.settings import FilePath, Listen, MetricsListen, Results, Text
from admission.trust_objects import SYSTEM_NAMESPACE


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class VerifierStream(_Part):
    """Where results come from, whose CA alone vouches for it, and the bearer token (role `machine` or `viewer`)."""

    url: Text
    ca_file: FilePath
    token_file: FilePath


class Kubernetes(_Part):
    """Which API server; without a kubeconfig, the one whose pod this is."""

    kubeconfig: FilePath | None = None


class Health(Listen):
    """Where `/healthz` answers, over plain HTTP and without any detail: loopback by default."""

    port: Annotated[int, Field(ge=0, le=65535)] = 9444


class ControllerSettings(_Part):
    """Everything that may be set."""

    verifier: VerifierStream
    results: Results
    kubernetes: Kubernetes = Kubernetes()
    namespace: Text = SYSTEM_NAMESPACE
    """Where the two Leases live, and the list of pods that may act upon verified nodes."""
    identity: Text | None = None
    """Name of this replica in the Leases; by default the host's name and a random part."""
    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """How many objects are reconciled at once."""
    silent_evictions_per_minute: Annotated[int, Field(ge=1, le=6000)] = 10
    """How fast pods are ended after mere silence; a fallen verdict knows no pace."""
    health: Health | None = None
    metrics: MetricsListen | None = None
    """A port of its own for figures; none is served without it."""
    policy_reports: bool = False
    """Whether to keep a PolicyReport (wgpolicyk8s.io/v1alpha2) in each namespace with sensitive pods, where the cluster
    has that kind. It needs the rights that the chart grants with `policyReports.enabled`."""
