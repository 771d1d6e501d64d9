"""Settings of webhook and broker: one YAML file each, frozen, unknown keys refused.

Paths are relative to the file that names them. There is no setting that weakens a check.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from edges.private_files import require_private
from edges.setting_files import read_fields, validated


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    # A NUL, or half of a surrogate pair, is in no file's name.
    if not isinstance(value, str) or not value or "\0" in value or not value.isprintable():
        raise ValueError("a path")
    return Path(value)


FilePath = Annotated[Path, BeforeValidator(_path)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]


class _Settings(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Listen(_Settings):
    """Where to serve. Loopback by default: a cluster's deployment names its address on purpose."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9443


class MetricsListen(Listen):
    """Where figures for Prometheus are served at /metrics, without TLS: loopback by default."""

    port: Annotated[int, Field(ge=0, le=65535)] = 9445


class Tls(_Settings):
    """PEM files of the server: the chain, and its key, which must be 0600."""

    certificate: FilePath
    key: FilePath
    client_ca: FilePath | None = None
    """Only clients with a certificate of this CA are served. Set it for the webhook of a cluster (the API server's
    client certificate is in its AdmissionConfiguration: docs/installing.md); health probes must then be of TCP."""


class Results(_Settings):
    """Whose results count: the verifier's id, this cluster's audience, and the verifier's keys, by file or address."""

    issuer: Text
    audience: Text
    jwks_file: FilePath | None = None
    jwks_url: Text | None = None
    jwks_ca_file: FilePath | None = None
    """The CA that alone vouches for `jwks_url`."""

    @model_validator(mode="after")
    def _one_source(self) -> Results:
        by_url = self.jwks_url is not None and self.jwks_ca_file is not None
        if (self.jwks_url is None) != (self.jwks_ca_file is None) or by_url == (self.jwks_file is not None):
            raise ValueError("either jwks_file, or jwks_url with jwks_ca_file")
        return self


class Tokens(_Settings):
    """Whose ServiceAccount tokens count: the cluster's issuer and its public keys."""

    issuer: Text
    jwks_file: FilePath


class Secrets(_Settings):
    """The sealed store and its key, both 0600; made by `nodewarden admission secrets put`."""

    store: FilePath
    key: FilePath


class Kubernetes(_Settings):
    """The cluster whose objects count, by a kubeconfig or as a pod of it."""

    kubeconfig: FilePath | None = None
    in_cluster: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Kubernetes:
        if (self.kubeconfig is not None) == self.in_cluster:
            raise ValueError("either kubeconfig, or in_cluster: true")
        return self


class ManagedTls(_Settings):
    """A serving certificate that the webhook makes itself and keeps in a Secret of nodewarden-system."""

    secret: Text = "nodewarden-webhook-tls"  # noqa: S105 - the name of the Secret object
    names: Annotated[list[Text], Field(min_length=1, max_length=16)] = ["nodewarden-webhook.nodewarden-system.svc"]
    """The DNS names by which the API server calls the webhook."""
    configuration: Text = "nodewarden"
    """Name of the ValidatingWebhookConfiguration and the MutatingWebhookConfiguration that get our CAs."""
    client_ca: FilePath | None = None
    """As in `tls`."""


class _Service(_Settings):
    listen: Listen = Listen()
    tls: Tls | None = None
    """Files of an operator or of cert-manager; changed files are taken up without a restart."""
    manifests: Annotated[list[FilePath], Field(min_length=1, max_length=64)] | None = None
    """Files or directories of YAML. Writers replace files by renaming, so that no half-written one is read."""
    kubernetes: Kubernetes | None = None
    """A real cluster instead of manifests."""
    results: Results
    reload_seconds: Annotated[int, Field(ge=1, le=10)] = 2
    """How often changed manifests and keys are looked for: the delay of a change, since no decision reads a file. Well
    below the 30 seconds after which a view that was not read allows nothing."""

    @model_validator(mode="after")
    def _one_cluster(self) -> _Service:
        if (self.manifests is None) == (self.kubernetes is None):
            raise ValueError("either manifests or kubernetes")
        return self


class WebhookSettings(_Service):
    """Settings of `nodewarden admission webhook`."""

    state_file: FilePath
    """Where sequences of results are remembered: without it a restart would be a way back to an older result, for as
    long as that lives (10 minutes at most), for whoever can write NodeAttestations. Losing it loses nothing else."""
    managed_tls: ManagedTls | None = None
    metrics: MetricsListen | None = None
    """A port of its own for figures; none is served without it. Figures hold no names of pods, nodes or secrets."""

    @model_validator(mode="after")
    def _one_certificate(self) -> WebhookSettings:
        if (self.tls is None) == (self.managed_tls is None):
            raise ValueError("either tls or managed_tls")
        if self.managed_tls is not None and self.kubernetes is None:
            raise ValueError("managed_tls needs kubernetes, where its Secret is")
        return self


class BrokerSettings(_Service):
    """Settings of `nodewarden admission broker`."""

    state_file: FilePath
    """Where leases, used requests and sequences are remembered."""
    metrics: MetricsListen | None = None
    """As the webhook's."""
    tls: Tls
    tokens: Tokens | None = None
    """Whose tokens count, with manifests; a cluster's own API server is asked instead (TokenReview)."""
    secrets: Secrets

    @model_validator(mode="after")
    def _one_issuer(self) -> BrokerSettings:
        if (self.tokens is None) == (self.manifests is not None):
            raise ValueError("tokens with manifests, and only with them")
        return self


SettingsT = TypeVar("SettingsT", bound=_Service)


def load_settings(kind: type[SettingsT], path: Path) -> SettingsT:
    """The settings in the YAML file `path`, with every path made absolute and the TLS key's mode checked.

    Raises as `read_settings`, Rejection `file-mode-unsafe`.
    """
    settings = read_settings(kind, path)
    if settings.tls is not None:
        require_private(settings.tls.key)
    return settings


ModelT = TypeVar("ModelT", bound=BaseModel)


def read_settings(kind: type[ModelT], path: Path) -> ModelT:
    """The settings in the YAML file `path`, with every path made absolute.

    Raises MalformedEvidence `setting-invalid`, Unavailable `file-unreadable`.
    """
    settings = validated(kind, read_fields(path), str(path))
    return _placed(settings, path.resolve().parent)


def _placed(model: ModelT, base: Path) -> ModelT:
    move = partial(_moved, base=base)
    return model.model_copy(update={name: move(value) for name, value in model})


def _moved(value: object, base: Path) -> object:
    if isinstance(value, Path):
        return base / value
    if isinstance(value, BaseModel):
        return _placed(value, base)
    if isinstance(value, list):
        return [_moved(part, base) for part in value]
    return value
