"""Everything that a first start needs, made in one directory: settings, TLS, keys, tokens, and empty directories."""

from __future__ import annotations

import json
from pathlib import Path

from edges.private_files import create_private
from verifier.roles import Role, create_tokens
from verifier.settings import Settings, load_settings
from verifier.tls import ensure_tls
from verifier.tokens import load_signer
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence, Unavailable

SETTINGS_FILE = "verifier.yaml"
_HEAD = """\
# The Nodewarden verifier's settings; paths are relative to this file. All fields: verifier/settings.py.
# Put baselines (*.yaml) into baselines/, TPM manufacturers' certificates into endorsements/roots/.
"""


def initialise(
    directory: Path, issuer: str, audience: str, host: str, port: int, names: tuple[str, ...], now: int
) -> Settings:
    """A directory from which `nodewarden verifier serve --config DIR/verifier.yaml` starts; the answer is its settings.

    Tokens lie in DIR/tokens/ (0600), one for each role. Raises MalformedEvidence `setting-invalid` when the directory
    holds settings already: nothing is overwritten.
    """
    path = directory / SETTINGS_FILE
    if path.exists():
        raise MalformedEvidence(ReasonCode.SETTING_INVALID, str(path), "there already", "a new directory")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("baselines", "endorsements/roots", "endorsements/intermediates", "endorsements/crls", "tokens"):
            (directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(ReasonCode.FILE_UNREADABLE, str(directory), error.strerror) from error
    fields = {
        "issuer": issuer,
        "audience": audience,
        "listen_host": host,
        "listen_port": port,
        "tls_names": list(names),
    }
    # JSON is YAML, with every text quoted.
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())
    create_private(path, (_HEAD + lines).encode())
    settings = load_settings(path)
    load_signer(settings.keys_dir)
    ensure_tls(settings.tls_dir, settings.tls_names, now)
    create_tokens(
        settings.tokens_file, {role.value: (role, directory / "tokens" / f"{role.value}.token") for role in Role}
    )
    return settings
