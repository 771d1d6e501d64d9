"""A software TPM (swtpm) for demo, tests and benchmarks: manufactured with EK certificates, started, power-cycled.

Everything lies in one private directory: the local CA's keys, the TPM's state. The TPM listens on loopback only, on
ports that were free; whoever can reach them can use it, as anyone could use a TPM without a resource manager.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from tpm2_pytss import ESAPI, TSS2_Exception
from tpm2_pytss.constants import ESYS_TR, TPM2_ALG, TPM2_SU, TPMA_NV
from tpm2_pytss.types import (
    TPM2B_AUTH,
    TPM2B_NV_PUBLIC,
    TPM2B_SENSITIVE_CREATE,
    TPML_DIGEST_VALUES,
    TPMS_NV_PUBLIC,
    TPMT_HA,
    TPMU_HA,
)

from attester.templates import EK_CERTIFICATE_INDEX, EkType, ek_template
from nodewarden_demo.measured_boot import extensions

PCR_BANKS = ("sha1", "sha256")
"""Active banks: those of the boot logs that we recorded, because a bank without log entries replays to nothing."""

_SETUP_SECONDS = 120.0
_START_SECONDS = 15.0
_STOP_SECONDS = 5.0
_NV_CHUNK_BYTES = 512
# PPWRITE, WRITEDEFINE, PPREAD, OWNERREAD, AUTHREAD, NO_DA, PLATFORMCREATE; WRITTEN and WRITELOCKED come by use.
_CERTIFICATE_INDEX_ATTRIBUTES = 0x42072001
_BANK_ALGORITHMS: Mapping[str, int] = {"sha1": TPM2_ALG.SHA1, "sha256": TPM2_ALG.SHA256}


@dataclass(frozen=True, slots=True)
class LocalCa:
    """A manufacturer's CA of our own: swtpm_localca makes its root and issuer with the first TPM."""

    directory: Path

    @classmethod
    def create(cls, directory: Path) -> LocalCa:
        """A CA with its configuration in `directory` (made, mode 0700); keys come with the first TPM."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        ca = cls(directory)
        (directory / "localca.conf").write_text(
            f"statedir = {directory}\nsigningkey = {directory}/signkey.pem\n"
            f"issuercert = {directory}/issuercert.pem\ncertserial = {directory}/certserial\n"
        )
        (directory / "localca.options").write_text(
            "--platform-manufacturer ExampleBoards\n--platform-version 1.0\n--platform-model TestNode\n"
        )
        (directory / "setup.conf").write_text(
            f"create_certs_tool= {_program('swtpm_localca')}\n"
            f"create_certs_tool_config = {directory}/localca.conf\n"
            f"create_certs_tool_options = {directory}/localca.options\nactive_pcr_banks = {','.join(PCR_BANKS)}\n"
        )
        return ca

    @property
    def root_pem(self) -> bytes:
        """The root certificate: what a verifier pins."""
        return (self.directory / "swtpm-localca-rootca-cert.pem").read_bytes()

    @property
    def issuer_pem(self) -> bytes:
        """The intermediate that signs EK certificates."""
        return (self.directory / "issuercert.pem").read_bytes()

    @property
    def root_der(self) -> bytes:
        """As `root_pem`, in DER."""
        return x509.load_pem_x509_certificate(self.root_pem).public_bytes(Encoding.DER)

    @property
    def issuer_der(self) -> bytes:
        """As `issuer_pem`, in DER."""
        return x509.load_pem_x509_certificate(self.issuer_pem).public_bytes(Encoding.DER)


class SoftwareTpm:
    """One software TPM over the state in `directory`. Use as a context manager, or call `start` and `stop`."""

    def __init__(self, directory: Path) -> None:
        self._state = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @classmethod
    def manufacture(cls, directory: Path, ca: LocalCa, serial: str = "test-tpm") -> SoftwareTpm:
        """A stopped TPM with RSA-2048, P-256 and P-384 EKs, each with a certificate of `ca` in NV, both banks active.

        `serial` becomes the certificates' subject. Takes seconds (RSA key search); `clone` is the quick way to more of
        the same. Raises subprocess errors when swtpm's tools fail, FileNotFoundError when they are not installed.
        """
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
        command = [
            _program("swtpm_setup"), "--tpm2", "--tpmstate", f"dir://{directory}", "--config",
            f"{ca.directory}/setup.conf", "--vmid", serial, "--logfile", f"{directory}/setup.log", "--createek",
            "--create-ek-cert", "--pcr-banks", ",".join(PCR_BANKS), "--lock-nvram", "--overwrite",
        ]  # fmt: skip
        _run(command)
        tpm = cls(directory)
        with tpm:
            # swtpm_setup makes RSA-2048 and P-384 certificates, never one for the low-range P-256 EK.
            tpm._certify_p256(ca, serial)
        return tpm

    @classmethod
    def attached(cls, directory: Path, port: int) -> SoftwareTpm:
        """The running TPM that another process started over `directory` on `port`; its starter stops it."""
        tpm = cls(directory)
        tpm._port = port
        return tpm

    def clone(self, directory: Path) -> SoftwareTpm:
        """Another TPM with the same identity and state in `directory`: for a test that must start from a fresh one."""
        if self._port != 0:
            raise RuntimeError("stop the TPM before cloning it")
        shutil.copytree(self._state, directory)
        return SoftwareTpm(directory)

    @property
    def tcti(self) -> str:
        """The TCTI string by which an attester reaches the running TPM."""
        if self._port == 0:
            raise RuntimeError("the software TPM is not running")
        return f"swtpm:host=127.0.0.1,port={self._port}"

    def start(self) -> None:
        """The TPM listens and has had TPM2_Startup(CLEAR). Raises RuntimeError when no start of five succeeds."""
        if self._port != 0:
            raise RuntimeError("the software TPM is running")
        for _ in range(5):
            port = _free_port_pair()
            command = [
                _program("swtpm"), "socket", "--tpm2", "--server",
                f"type=tcp,port={port},bindaddr=127.0.0.1,disconnect", "--ctrl",
                f"type=tcp,port={port + 1},bindaddr=127.0.0.1", "--tpmstate", f"dir={self._state}",
                "--flags", "not-need-init",
            ]  # fmt: skip
            with (self._state / "swtpm.log").open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603 - arguments are ours
            self._port = port
            atexit.register(self.stop)
            with suppress(TSS2_Exception):
                if self._listens(self._process):
                    self._startup(TPM2_SU.CLEAR)
                    return
            # Someone took a port between our look and its start, or the last process still holds the state's lock.
            self._end_process()
        raise RuntimeError(f"swtpm does not start: see {self._state}/swtpm.log")

    def stop(self) -> None:
        """The process has ended, after an orderly TPM2_Shutdown where that was possible. Harmless when not running."""
        process = self._process
        if process is None:
            return
        try:
            if process.poll() is None:
                with suppress(TSS2_Exception), self._connection() as esapi:
                    esapi.shutdown(TPM2_SU.CLEAR)
        finally:
            self._end_process()

    def _end_process(self) -> None:
        process, self._process, self._port = self._process, None, 0
        if process is None:
            return
        atexit.unregister(self.stop)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def reset(self) -> None:
        """TPM Reset, as a reboot makes it: resetCount + 1, restartCount 0, PCRs initial, null seed new."""
        self._power_cycle(TPM2_SU.CLEAR, TPM2_SU.CLEAR)

    def restart(self) -> None:
        """TPM Restart: Shutdown(STATE), Startup(CLEAR). restartCount + 1, PCRs initial, the null seed *survives*."""
        self._power_cycle(TPM2_SU.STATE, TPM2_SU.CLEAR)

    def resume(self) -> None:
        """TPM Resume, as after suspend to RAM: restartCount + 1, PCRs (of the saved set) and null seed survive."""
        self._power_cycle(TPM2_SU.STATE, TPM2_SU.STATE)

    def clear(self) -> None:
        """TPM2_Clear: owner and endorsement children are gone, counters are 0, the EK itself is the same."""
        with self._connection() as esapi:
            esapi.clear(ESYS_TR.LOCKOUT)

    def extend(self, pcr: int, digests: Mapping[str, bytes]) -> None:
        """PCR `pcr` is extended with the digest of each bank in one command. Raises KeyError for an inactive bank."""
        with self._connection() as esapi:
            _extend(esapi, pcr, digests)

    def extend_boot_log(self, log: bytes) -> None:
        """The PCRs hold what the boot recorded in `log` measured, if they were initial before.

        Raises ValueError for a log that `nodewarden_demo.measured_boot` cannot play.
        """
        with self._connection() as esapi:
            for extension in extensions(log):
                _extend(esapi, extension.pcr, extension.digests)

    @contextmanager
    def _connection(self) -> Iterator[ESAPI]:
        esapi = ESAPI(self.tcti)
        try:
            yield esapi
        finally:
            esapi.close()

    def _listens(self, process: subprocess.Popen[bytes]) -> bool:
        # Asked on the control channel: a connection to the TPM's own port that sends nothing would occupy it.
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port + 1), 1.0):
                return True
            time.sleep(0.01)
        return False

    def _startup(self, kind: int) -> None:
        with self._connection() as esapi:
            esapi.startup(kind)

    def _power_cycle(self, shutdown: int, startup: int) -> None:
        with self._connection() as esapi:
            esapi.shutdown(shutdown)
        _run([_program("swtpm_ioctl"), "-i", "--tcp", f"127.0.0.1:{self._port + 1}"])
        self._startup(startup)

    def _certify_p256(self, ca: LocalCa, serial: str) -> None:
        with self._connection() as esapi:
            template = ek_template(EkType.P_256)
            handle, public, *_ = esapi.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.ENDORSEMENT)
            esapi.flush_context(handle)
            point = public.publicArea.unique.ecc
            x, y = bytes(point.x).rjust(32, b"\0"), bytes(point.y).rjust(32, b"\0")
            command = [
                _program("swtpm_localca"), "--type", "ek", "--ek", f"x={x.hex()},y={y.hex()},id=secp256r1",
                "--dir", f"{self._state}", "--vmid", serial, "--configfile", f"{ca.directory}/localca.conf",
                "--optsfile", f"{ca.directory}/localca.options", "--tpm2", "--tpm-spec-family", "2.0",
                "--tpm-spec-revision", "164", "--tpm-spec-level", "0", "--tpm-manufacturer", "id:00001014",
                "--tpm-model", "swtpm", "--tpm-version", "id:20191023", "--logfile", f"{self._state}/localca.log",
            ]  # fmt: skip
            _run(command)
            _store_certificate(esapi, EK_CERTIFICATE_INDEX[EkType.P_256], (self._state / "ek.cert").read_bytes())


def _store_certificate(esapi: ESAPI, index: int, certificate: bytes) -> None:
    area = TPMS_NV_PUBLIC(
        nvIndex=index,
        nameAlg=TPM2_ALG.SHA256,
        attributes=TPMA_NV(_CERTIFICATE_INDEX_ATTRIBUTES),
        dataSize=len(certificate),
    )
    handle = esapi.nv_define_space(TPM2B_AUTH(), TPM2B_NV_PUBLIC(nvPublic=area), auth_handle=ESYS_TR.PLATFORM)
    for offset in range(0, len(certificate), _NV_CHUNK_BYTES):
        chunk = certificate[offset : offset + _NV_CHUNK_BYTES]
        esapi.nv_write(handle, chunk, offset, auth_handle=ESYS_TR.PLATFORM)
    esapi.nv_write_lock(handle, auth_handle=ESYS_TR.PLATFORM)


def _extend(esapi: ESAPI, pcr: int, digests: Mapping[str, bytes]) -> None:
    # Extending an inactive bank is silently ignored by a TPM: refuse it here, or a test would prove nothing.
    values = [TPMT_HA(hashAlg=_BANK_ALGORITHMS[bank], digest=_digest(bank, value)) for bank, value in digests.items()]
    esapi.pcr_extend(ESYS_TR(pcr), TPML_DIGEST_VALUES(values))


def _digest(bank: str, value: bytes) -> TPMU_HA:
    return TPMU_HA(sha1=value) if bank == "sha1" else TPMU_HA(sha256=value)


def _free_port_pair() -> int:
    # The TCTI looks for the control channel at the next port, so the two must be neighbours. swtpm takes no listening
    # socket for its command channel: between this look and its start the ports are free for others.
    for _ in range(200):
        with socket.socket() as server, socket.socket() as control:
            server.bind(("127.0.0.1", 0))
            port = int(server.getsockname()[1])
            with suppress(OSError, OverflowError):
                control.bind(("127.0.0.1", port + 1))
                return port
    raise RuntimeError("no two neighbouring free ports on loopback")


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not installed (Debian packages swtpm and swtpm-tools)")
    return path


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_SETUP_SECONDS)  # noqa: S603 - as above
