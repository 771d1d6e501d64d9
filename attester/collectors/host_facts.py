"""What the host says of itself. Unproved, but bound by the quote to the node that says it."""

from __future__ import annotations

import os
from pathlib import Path

from attester.collectors.securityfs import read_to_end
from verifier.wire.bundle import HostFacts
from verifier.wire.encoding import canonical_json

LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_ID_BYTES = 64


def collect_host_facts(boot_id_path: Path = LINUX_BOOT_ID) -> HostFacts:
    """Host name, kernel release and Linux boot_id as canonical JSON.

    The boot_id is what a cluster sees as the node's bootID, also from inside a container. Raises Unavailable
    `log-unreadable`.
    """
    boot_id = read_to_end(boot_id_path, _BOOT_ID_BYTES).decode("ascii", "replace").strip()
    system = os.uname()
    facts = {"hostname": system.nodename, "kernel_release": system.release, "linux_boot_id": boot_id}
    return HostFacts(0, canonical_json(facts))
