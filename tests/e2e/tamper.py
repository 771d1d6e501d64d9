"""`python -m tests.e2e.tamper TCTI`: measures into a software TPM what its machine's boot log does not hold."""

from __future__ import annotations

import argparse

from tpm2_pytss import ESAPI
from tpm2_pytss.constants import ESYS_TR


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tcti", help="the machine's TPM, as its attester.yaml has it")
    esapi = ESAPI(parser.parse_args().tcti)
    try:
        esapi.pcr_event(ESYS_TR.PCR4, b"another boot loader")
    finally:
        esapi.close()
    print("PCR 4 now holds more than the boot log says.")


if __name__ == "__main__":
    main()
