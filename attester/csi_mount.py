"""One mount of a pod's volume: the broker asked in the node's name, the answer opened in the TPM, files made of it.

Nothing is written to a disk here: contents leave in the answer alone, and the driver writes them on the pod's tmpfs.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from attester.client import open_client
from attester.csi_messages import File, MountResponse, ObjectVersion
from attester.csi_request import Wanted
from attester.release import OpenedSecret, fetch_secrets
from attester.rounds import Clock, enrolled_node
from attester.secret_files import file_names
from attester.settings import AttesterSettings
from edges.private_files import read_own, replace_private, require_private_directory
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import MalformedEvidence

TPM_WAIT_SECONDS = 20.0
"""For each of the two uses of the TPM. The kubelet gives a mount two minutes in all, the driver's own work included."""
REQUEST_SECONDS = 20
"""For each part of the broker's answer, unless the settings say less; a whole exchange takes at most twice that."""

_KEY_FILE = "object-version.key"
_KEY_BYTES = 32
_LABEL = b"nodewarden/csi-object-version/1\0"


class Mounts:
    """Answers mounts on the node that `settings` names."""

    def __init__(self, settings: AttesterSettings, clock: Clock) -> None:
        """Raises MalformedEvidence `setting-invalid` without a broker; `file-mode-unsafe`, `file-unreadable`."""
        if settings.broker_url is None:
            raise MalformedEvidence(ReasonCode.SETTING_INVALID, "broker_url", "not set", "the secret broker's address")
        self._settings, self._broker_url, self._clock = settings, settings.broker_url, clock
        self._versions = ObjectVersions(settings.runtime_dir)

    def mount(self, wanted: Wanted) -> MountResponse:
        """Every secret that is `wanted`, as files; or the refusal of the broker or of a part of this node.

        The lease that the broker gives is the pod's until it ends, so that asking again, as the driver does to rotate,
        takes no other.
        """
        # Read each time: a node that enrols anew goes on without this process being started again.
        node = enrolled_node(self._settings)
        connect, request = self._settings.connect_timeout_seconds, self._settings.request_timeout_seconds
        timeouts = connect, min(request, REQUEST_SECONDS)
        # A connection for each, since mounts of a node come together and then for minutes none.
        with open_client(self._broker_url, self._settings.ca_file, *timeouts) as broker:
            opened = fetch_secrets(node, broker, wanted.token, wanted.names, self._clock, lock_seconds=TPM_WAIT_SECONDS)
        names = file_names(opened)
        return MountResponse(
            tuple(ObjectVersion(one.name, self._versions.version_of(one)) for one in opened),
            tuple(File(name, wanted.mode, one.content) for name, one in zip(names, opened, strict=True)),
        )


class ObjectVersions:
    """Names for "this content under this lease", to be shown to whoever reads objects of the pod's namespace.

    Attack: a bare digest in a SecretProviderClassPodStatus would let its readers try guesses of a short secret, and see
    which pods share one. The key is this boot's, as leases are, and in the runtime directory, so that a provider that
    was started anew does not call the same content another.
    """

    def __init__(self, runtime_directory: Path) -> None:
        """The key is kept in `runtime_directory`, made where it is not there. Raises as `private_files` do."""
        require_private_directory(runtime_directory)
        path = runtime_directory / _KEY_FILE
        key = read_own(path, _KEY_BYTES)
        if key is None or len(key) != _KEY_BYTES:
            key = os.urandom(_KEY_BYTES)
            replace_private(path, key)
        self._key = key

    def version_of(self, secret: OpenedSecret) -> str:
        """32 hex digits; the same for the same content under the same lease, in this boot."""
        # The broker's word, in which half a character would be no text.
        lease = hashlib.sha256(secret.lease_id.encode("utf-8", "surrogatepass")).digest()
        return hmac.new(self._key, _LABEL + lease + secret.content, hashlib.sha256).hexdigest()[:32]
