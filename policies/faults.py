"""Why a baseline is refused: one code per fault, with the path of the field that has it."""

from __future__ import annotations

from enum import StrEnum


class PolicyCode(StrEnum):
    """Append-only, as every code that people search for."""

    TOO_LARGE = "policy-too-large"
    YAML_INVALID = "policy-yaml-invalid"
    YAML_FORBIDDEN = "policy-yaml-forbidden"
    """Anchors, aliases, tags, several documents, nesting beyond the limit."""
    KEY_DUPLICATED = "policy-key-duplicated"
    KEY_UNKNOWN = "policy-key-unknown"
    KEY_MISSING = "policy-key-missing"
    VALUE_AMBIGUOUS = "policy-value-ambiguous"
    """A plain scalar that YAML might read as another type; quote it."""
    VERSION_UNQUOTED = "policy-version-unquoted"
    VALUE_INVALID = "policy-value-invalid"
    LIST_EMPTY = "policy-list-empty"
    LIST_DUPLICATE = "policy-list-duplicate"
    DIGEST_INVALID = "policy-digest-invalid"
    VALIDITY_EMPTY = "policy-validity-empty"
    PCR_REQUIRED = "policy-pcr-required"
    CMDLINE_CONTRADICTION = "policy-cmdline-contradiction"
    VALIDITY_TOO_LONG = "policy-validity-too-long"
    KEXEC_NOT_STOPPED = "policy-kexec-not-stopped"
    IGNORED_KEY_UNSAFE = "policy-ignored-key-unsafe"
    INITRD_UNJUDGED = "policy-initrd-unjudged"
    PLACEHOLDER_LEFT = "policy-placeholder-left"
    AGE_SHORT = "policy-age-short"


class BaselineFault(ValueError):
    """The baseline cannot be used: `code` at `path`; `message` says it for a person, `more` holds further faults."""

    def __init__(self, code: PolicyCode, path: str, message: str, more: tuple[BaselineFault, ...] = ()) -> None:
        super().__init__(f"{path}: {message}")
        self.code = code
        self.path = path
        self.message = message
        self.more = more

    @property
    def every(self) -> tuple[BaselineFault, ...]:
        """This fault, then the others that were found with it."""
        return (self, *self.more)

    def as_json(self) -> dict[str, str]:
        return {"code": self.code.value, "path": self.path, "message": self.message}
