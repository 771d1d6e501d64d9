"""`python -m tests.e2e.hands tamper|reboot FOLDER`: does to a machine of `make cluster` what a person at it would.

FOLDER is the machine's, with its attester.yaml and its boot log.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml
from tpm2_pytss import ESAPI
from tpm2_pytss.constants import ESYS_TR

from nodewarden_demo.software_tpm import SoftwareTpm
from nodewarden_demo.stage import GOOD_BOOT, boot_log


def main() -> None:
    parser = argparse.ArgumentParser(prog="hands", description=__doc__)
    parser.add_argument("action", choices=("tamper", "reboot"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    tcti = str(yaml.safe_load((options.folder / "attester.yaml").read_text())["tcti"])
    if options.action == "tamper":
        _tamper(tcti)
    else:
        _reboot(tcti, options.folder)


def _tamper(tcti: str) -> None:
    esapi = ESAPI(tcti)
    try:
        esapi.pcr_event(ESYS_TR.PCR4, b"another boot loader")
    finally:
        esapi.close()
    print("PCR 4 now holds more than the boot log says.")


def _reboot(tcti: str, folder: Path) -> None:
    tpm = SoftwareTpm.attached(folder / "tpm", int(tcti.rpartition("=")[2]))
    tpm.reset()
    log = boot_log(GOOD_BOOT)
    tpm.extend_boot_log(log)
    (folder / "boot.log").write_bytes(log)
    print("Rebooted, with the kernel command line that the baseline expects.")


if __name__ == "__main__":
    main()
