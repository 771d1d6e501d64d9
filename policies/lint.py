"""What a baseline that loads should still not say, if it is to protect anything."""

from __future__ import annotations

from collections.abc import Iterator

from policies.compiler import seconds
from policies.faults import BaselineFault, PolicyCode
from policies.kernel_arguments import parse_argument
from policies.schema import Baseline, BootSet, parsed

MAX_VALIDITY_SECONDS = 180 * 86400
"""A forgotten baseline must end: nobody reviews what still passes."""
LOCKDOWN = frozenset({("lockdown", "integrity"), ("lockdown", "confidentiality")})
"""kernel_lockdown(7): both refuse kexec of unsigned images and writes to kernel memory."""
HARMLESS_KEYS = frozenset(
    {
        "BOOT_IMAGE", "biosdevname", "crashkernel", "default_hugepagesz", "hugepages", "hugepagesz", "isolcpus",
        "loglevel", "net.ifnames", "nmi_watchdog", "nohz_full", "panic", "quiet", "rcu_nocbs", "splash",
        "transparent_hugepage", "vt.handoff",
    }
)  # fmt: skip
"""Keys that may have any value: names, sizes, processors and how much is said. No list of the dangerous ones would be
complete. Not among them, though they differ from machine to machine: `root`, which decides what runs after the boot
(with `roothash=` too: systemd still mounts what `root` says), `resume`, which names a memory image to continue, and
`console`, at which a kernel takes SysRq. Allow each of their values."""
SHIM_PCR = 14
STUB_PCRS = frozenset({11, 12})
"""systemd-stub measures sections (11), command lines and credentials (12)."""
GRUB_PCR, FILES_PCR = 8, 9
SHORT_AGE_SECONDS = 120


def lint(baseline: Baseline, source: str) -> tuple[BaselineFault, ...]:
    """Every fault of `baseline` that its schema does not show; empty when there is none."""
    faults = []
    metadata = baseline.metadata
    if seconds(metadata.expires) - seconds(metadata.not_before) > MAX_VALIDITY_SECONDS:
        faults.append(
            BaselineFault(
                PolicyCode.VALIDITY_TOO_LONG, f"{source}.metadata.expires", "at most 180 days after notBefore"
            )
        )
    faults += _uncovered(baseline, source)
    seen: dict[BootSet, str] = {}
    for position, boot_set in enumerate(baseline.boot_sets):
        place = f"{source}.bootSets.{position}"
        faults += _lint_boot_set(boot_set, place)
        nameless = boot_set.model_copy(update={"id": ""})
        if nameless in seen:
            message = f"accepts exactly what {seen[nameless]} does: remove one, or correct it"
            faults.append(BaselineFault(PolicyCode.LIST_DUPLICATE, place, message))
        seen.setdefault(nameless, boot_set.id)
    return tuple(faults)


def advise(baseline: Baseline, source: str) -> tuple[BaselineFault, ...]:
    """What may be meant and is rarely wise: no ground to refuse `baseline`."""
    if baseline.evidence.max_age_seconds >= SHORT_AGE_SECONDS:
        return ()
    return (
        BaselineFault(
            PolicyCode.AGE_SHORT,
            f"{source}.evidence.maxAgeSeconds",
            f"below {SHORT_AGE_SECONDS}: a node attests every 60 seconds by default, so one lost attempt drops it",
        ),
    )


def _uncovered(baseline: Baseline, source: str) -> Iterator[BaselineFault]:
    """Attack: events of a PCR that is not required are left out of the log, and nothing else shows them."""
    required = frozenset(baseline.evidence.require_pcr_replay)
    for boot_set in baseline.boot_sets:
        needed = {FILES_PCR, SHIM_PCR}
        if len(boot_set.images) > 1:
            needed.add(GRUB_PCR)
        if len(boot_set.images) == 1 or boot_set.cmdline.digests is not None:
            needed |= STUB_PCRS
        missing = sorted(needed - required)
        if missing:
            yield BaselineFault(
                PolicyCode.PCR_REQUIRED,
                f"{source}.evidence.requirePcrReplay",
                f"boot set {boot_set.id} is judged by PCRs {', '.join(map(str, missing))}, too: add them",
            )


def _lint_boot_set(boot_set: BootSet, place: str) -> list[BaselineFault]:
    faults = []
    required = {argument.same_as for argument in parsed(boot_set.cmdline.require)}
    # Attack: kexec starts another kernel and resets neither PCRs nor counters, so no quote would show it.
    if boot_set.lockdown == "cmdline" and not required & LOCKDOWN:
        faults.append(
            BaselineFault(
                PolicyCode.KEXEC_NOT_STOPPED,
                f"{place}.cmdline.require",
                "nothing stops kexec: require lockdown=integrity or lockdown=confidentiality, or list kernels that "
                "lock down by themselves and say lockdown: kernel",
            )
        )
    # Attack: a loader checks the kernel's signature and not the initrd's, so whoever writes the boot partition is root.
    # A kernel that the firmware starts reads initrd and load options itself; the log only claims which is which.
    if boot_set.files is None:
        faults.append(
            BaselineFault(
                PolicyCode.INITRD_UNJUDGED,
                f"{place}.files",
                "nothing judges the initrd and the load options: list all that PCR 9 may hold",
            )
        )
    for key in boot_set.cmdline.ignore_keys or ():
        if parse_argument(key).key not in HARMLESS_KEYS:
            faults.append(
                BaselineFault(
                    PolicyCode.IGNORED_KEY_UNSAFE,
                    f"{place}.cmdline.ignoreKeys",
                    f"{key} is not known to be harmless with every value; allow its values instead",
                )
            )
    return faults
