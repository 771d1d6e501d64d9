"""What a baseline that loads should still not say, if it is to protect anything."""

from __future__ import annotations

from policies.compiler import seconds
from policies.faults import BaselineFault, PolicyCode
from policies.kernel_arguments import parse_argument
from policies.schema import Baseline, BootSet, parsed

MAX_VALIDITY_SECONDS = 180 * 86400
"""A forgotten baseline must end: nobody reviews what still passes."""
LOCKDOWN = frozenset({("lockdown", "integrity"), ("lockdown", "confidentiality")})
"""kernel_lockdown(7): both refuse kexec of unsigned images and writes to kernel memory."""
UNSAFE_KEYS = frozenset(
    {
        "init", "rdinit", "rd.break", "rd.shell", "single", "emergency", "lockdown", "lsm", "security", "selinux",
        "enforcing", "apparmor", "module.sig_enforce", "module_blacklist", "ima", "ima_policy", "ima_appraise",
        "ima_template", "ima_hash", "ima_tcb", "evm", "integrity_audit", "initrd", "efi", "acpi", "iommu",
        "intel_iommu", "amd_iommu", "memmap", "kexec_load_disabled", "systemd.unit", "systemd.debug_shell",
        "systemd.run", "systemd.wants", "systemd.mask", "tpm.disable_pcr_integrity",
    }
)  # fmt: skip
"""Keys whose value decides what code runs or whether a protection holds: an open value there opens the node."""


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
    for position, boot_set in enumerate(baseline.boot_sets):
        faults += _lint_boot_set(boot_set, f"{source}.bootSets.{position}")
    return tuple(faults)


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
    if boot_set.files is None and len(boot_set.images) > 1:
        faults.append(
            BaselineFault(
                PolicyCode.INITRD_UNJUDGED,
                f"{place}.files",
                "a loader reads an initrd that nothing judges: list the files that it may read",
            )
        )
    for key in boot_set.cmdline.ignore_keys or ():
        if parse_argument(key).key in UNSAFE_KEYS:
            faults.append(
                BaselineFault(
                    PolicyCode.IGNORED_KEY_UNSAFE,
                    f"{place}.cmdline.ignoreKeys",
                    f"{key} decides what runs or what is protected; allow its values instead",
                )
            )
    return faults
