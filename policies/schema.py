"""What a baseline can say: the facts that evidence must show for a node to be affirmed.

Every list is a closed allow-list, so an empty one is refused rather than read as "anything" or "nothing". An optional
rule that is absent is not applied; which rules are optional is said at each. Digests that the boot log holds are of
the baseline's PCR bank; certificate and dbx digests are SHA-256. Pure: no I/O, no clock.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from policies.faults import PolicyCode
from policies.kernel_arguments import KernelArgument, parse_argument

FIRMWARE_PCRS = frozenset(range(8))
"""PCRs 0 to 7 belong to the firmware (TCG PC Client Platform Firmware Profile, section 3.3.4); all must replay."""
DIGEST_HEX: dict[str, int] = {"sha256": 64, "sha384": 96}
MAX_LIST = 1024


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=False,
        validate_by_alias=True,
    )


def _fault(code: PolicyCode, message: str) -> PydanticCustomError:
    return PydanticCustomError(code.value, "{why}", {"why": message})


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) != len(values):
        raise _fault(PolicyCode.LIST_DUPLICATE, "each value once")
    return values


def _hex(text: str) -> str:
    if len(text) not in DIGEST_HEX.values() or not all(c in "0123456789abcdef" for c in text):
        raise _fault(PolicyCode.DIGEST_INVALID, "a whole digest in lower-case hex")
    return text


def _sha256(text: str) -> str:
    if len(_hex(text)) != DIGEST_HEX["sha256"]:
        raise _fault(PolicyCode.DIGEST_INVALID, "a SHA-256 digest: 64 hex digits")
    return text


def _time(text: str) -> str:
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise _fault(PolicyCode.VALUE_INVALID, "a time as YYYY-MM-DDTHH:MM:SSZ") from error
    if moment.strftime("%Y-%m-%dT%H:%M:%SZ") != text or moment.year < 1970:
        raise _fault(PolicyCode.VALUE_INVALID, "a time as YYYY-MM-DDTHH:MM:SSZ")
    return text


def _argument(text: str) -> str:
    argument = parse_argument(text)
    if not argument.plain or not argument.key:
        raise _fault(PolicyCode.VALUE_INVALID, "one kernel argument: printable ASCII without quotes and spaces")
    return text


def _key(text: str) -> str:
    if "=" in _argument(text):
        raise _fault(PolicyCode.VALUE_INVALID, "a key only, without '='")
    return text


BankDigest = Annotated[str, AfterValidator(_hex)]
Sha256 = Annotated[str, AfterValidator(_sha256)]
Time = Annotated[str, AfterValidator(_time)]
Name = Annotated[str, StringConstraints(pattern=r"\A[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\z")]
Version = Annotated[str, StringConstraints(pattern=r"\A(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8})){2}\z")]
Pattern = Annotated[str, StringConstraints(pattern=r"\A[a-z0-9][a-z0-9.-]{0,61}[a-z0-9.-]?\*?\z")]
"""A name, or a prefix followed by one `*`."""
Line = Annotated[str, StringConstraints(max_length=256, pattern=r"\A[^\x00-\x1f\x7f]*\z")]
BankDigests = Annotated[tuple[BankDigest, ...], Field(min_length=1, max_length=MAX_LIST), AfterValidator(_distinct)]
BankSequence = Annotated[tuple[BankDigest, ...], Field(min_length=1, max_length=64)]
"""In order; a digest may come twice."""
Sha256Digests = Annotated[tuple[Sha256, ...], Field(min_length=1, max_length=4096), AfterValidator(_distinct)]
Arguments = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=1024), AfterValidator(_argument)], ...],
    Field(min_length=1, max_length=MAX_LIST),
    AfterValidator(_distinct),
]
Keys = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=256), AfterValidator(_key)], ...],
    Field(min_length=1, max_length=MAX_LIST),
    AfterValidator(_distinct),
]
Names = Annotated[tuple[Pattern, ...], Field(min_length=1, max_length=MAX_LIST), AfterValidator(_distinct)]


class Metadata(_Strict):
    """Name, semantic version and validity."""

    name: Name
    version: Version
    summary: Annotated[Line, Field(min_length=1)]
    not_before: Time
    expires: Time

    @model_validator(mode="after")
    def _ordered(self) -> Metadata:
        # The one form of times sorts as text.
        if self.not_before >= self.expires:
            raise _fault(PolicyCode.VALIDITY_EMPTY, "notBefore must lie before expires")
        return self


class AppliesTo(_Strict):
    """Which nodes this baseline may judge; both come from the inventory, never from a node or a label."""

    tenants: Names
    cohorts: Names


class EvidenceRule(_Strict):
    """What the quote must cover, and how long a verdict on it may last."""

    max_age_seconds: Annotated[int, Field(ge=60, le=600)]
    pcr_bank: Literal["sha256", "sha384"]
    require_pcr_replay: Annotated[tuple[Annotated[int, Field(ge=0, le=23)], ...], Field(min_length=1, max_length=24)]

    @field_validator("require_pcr_replay")
    @classmethod
    def _covers_firmware(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(value)) != len(value):
            raise _fault(PolicyCode.LIST_DUPLICATE, "each PCR once")
        if not set(value) >= FIRMWARE_PCRS:
            raise _fault(PolicyCode.PCR_REQUIRED, "PCRs 0 to 7 must be among them")
        return value


class Manufacturer(_Strict):
    """A TPM manufacturer by its TCG vendor id: four characters as text, such as INTC, or eight hex digits."""

    id: Annotated[str, StringConstraints(pattern=r"\A([A-Z0-9 ]{2,4}|[0-9A-F]{8})\z")]


class TpmRule(_Strict):
    """Which TPMs count. `manufacturers` is optional and needs a certificate, so it needs `ekChain: required`."""

    manufacturers: Annotated[tuple[Manufacturer, ...], Field(min_length=1, max_length=64)] | None = None
    ek_chain: Literal["required", "inventory"]

    @model_validator(mode="after")
    def _endorsed(self) -> TpmRule:
        if self.manufacturers is not None and self.ek_chain != "required":
            raise _fault(PolicyCode.VALUE_INVALID, "only a certificate names a manufacturer: ekChain must be required")
        return self


class SecureBootRule(_Strict):
    """Secure Boot must be on and out of setup mode. Both lists are optional: certificates that may allow an image to
    start (SHA-256 of the DER certificate), and hashes that the revocation list must hold."""

    enabled: Literal["required"]
    setup_mode: Literal["forbidden"]
    authorities: Sha256Digests | None = None
    dbx_required: Sha256Digests | None = None


class Firmware(_Strict):
    """One firmware build: its version as measured (EV_S_CRTM_VERSION), and every digest that PCRs 0 and 2 may hold with
    it (firmware volumes, option ROMs). `versionDigest`, the event's digest, is optional and stands for the version of
    firmware that measures another text than it logs."""

    version: Line
    version_digest: BankDigest | None = None
    blobs: BankDigests


class FirmwareRule(_Strict):
    allow: Annotated[tuple[Firmware, ...], Field(min_length=1, max_length=256)]


class Image(_Strict):
    """One step of the boot chain, in the order in which the steps are measured."""

    role: Literal["loader", "kernel"]
    authenticode: BankDigests


class CommandLineRule(_Strict):
    """A closed grammar: each argument must be required, allowed, or of an ignored key; any other fails.

    `forbid` only names what is refused under its own code: a key, or an argument with its value. `digests` are of whole
    command lines of which the log shows the digest only (inside a unified kernel image). All optional, but one of
    `require`, `allow` and `digests` must be there.
    """

    require: Arguments | None = None
    allow: Arguments | None = None
    ignore_keys: Keys | None = None
    forbid: Arguments | None = None
    digests: BankDigests | None = None

    @model_validator(mode="after")
    def _coherent(self) -> CommandLineRule:
        if self.require is None and self.allow is None and self.digests is None:
            raise _fault(PolicyCode.LIST_EMPTY, "at least one of require, allow and digests")
        required, allowed, forbidden = (parsed(part) for part in (self.require, self.allow, self.forbid))
        ignored = {argument.key for argument in parsed(self.ignore_keys)}
        for argument in (*required, *allowed):
            if argument.key in ignored:
                raise _fault(PolicyCode.CMDLINE_CONTRADICTION, f"{argument.text} is also an ignored key")
            if any(forbids(bar, argument) for bar in forbidden):
                raise _fault(PolicyCode.CMDLINE_CONTRADICTION, f"{argument.text} is also forbidden")
        values = {argument.key: argument.value for argument in required}
        for argument in allowed:
            # Attack: the last of two values wins, so an allowed second value would undo the required one.
            if argument.key in values and values[argument.key] != argument.value:
                raise _fault(PolicyCode.CMDLINE_CONTRADICTION, f"{argument.text} would override a required argument")
        return self


def parsed(arguments: tuple[str, ...] | None) -> tuple[KernelArgument, ...]:
    """The arguments of an optional list; none where the rule is absent."""
    return () if arguments is None else tuple(parse_argument(text) for text in arguments)


def forbids(bar: KernelArgument, argument: KernelArgument) -> bool:
    """Whether the `forbid` entry `bar` names `argument`: by key alone, or by key and value."""
    return bar.key == argument.key and (bar.value is None or bar.value == argument.value)


class BootSet(_Strict):
    """One coherent chain: images in order, command line, what stops kexec, and optionally files.

    `files` are the digests of all that a loader or the kernel's EFI stub may read (PCR 9): initrd, its configuration,
    the kernel file, load options. Their names are hints, so an initrd can be pinned only together with the rest.

    `mok` are the digests that shim measures of its own lists and settings (PCR 14: MokList, MokListX, MokListTrusted),
    all of them and in order. Where it is absent, PCR 14 must hold none: the machine boots without shim.

    `lockdown: cmdline`: the required arguments lock the kernel down. `lockdown: kernel`: the listed kernels lock
    themselves down under Secure Boot, as distributions' signed kernels do; whoever writes that vouches for it.
    """

    id: Name
    images: Annotated[tuple[Image, ...], Field(min_length=1, max_length=16)]
    files: BankDigests | None = None
    mok: BankSequence | None = None
    cmdline: CommandLineRule
    lockdown: Literal["cmdline", "kernel"]

    @field_validator("images")
    @classmethod
    def _ends_in_kernel(cls, value: tuple[Image, ...]) -> tuple[Image, ...]:
        if not any(image.role == "kernel" for image in value):
            raise _fault(PolicyCode.VALUE_INVALID, "a boot set names a kernel")
        return value


class Baseline(_Strict):
    """One version of one baseline, as people write it."""

    api_version: Literal["nodewarden.dev/v1"]
    kind: Literal["Baseline"]
    metadata: Metadata
    applies_to: AppliesTo
    evidence: EvidenceRule
    tpm: TpmRule
    secure_boot: SecureBootRule
    firmware: FirmwareRule
    boot_sets: Annotated[tuple[BootSet, ...], Field(min_length=1, max_length=256)]

    @model_validator(mode="after")
    def _digests_of_the_bank(self) -> Baseline:
        width = DIGEST_HEX[self.evidence.pcr_bank]
        for place, digests in self._bank_digests():
            if any(len(digest) != width for digest in digests):
                bank = self.evidence.pcr_bank
                raise _fault(PolicyCode.DIGEST_INVALID, f"{place}: every digest must be of the bank {bank}")
        ids = [boot_set.id for boot_set in self.boot_sets]
        if len(set(ids)) != len(ids):
            raise _fault(PolicyCode.LIST_DUPLICATE, "bootSets: each id once")
        return self

    def _bank_digests(self) -> list[tuple[str, tuple[str, ...]]]:
        found = [("firmware.blobs", firmware.blobs) for firmware in self.firmware.allow]
        found += [("images", image.authenticode) for boot_set in self.boot_sets for image in boot_set.images]
        found += [("firmware.versionDigest", (f.version_digest,)) for f in self.firmware.allow if f.version_digest]
        found += [("cmdline.digests", boot_set.cmdline.digests or ()) for boot_set in self.boot_sets]
        found += [("files", boot_set.files or ()) for boot_set in self.boot_sets]
        found += [("mok", boot_set.mok or ()) for boot_set in self.boot_sets]
        return found
