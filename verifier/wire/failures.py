"""How a refusal travels: one typed failure, and the exceptions that carry it.

`MalformedEvidence`: the bytes have no meaning. `Rejection`: they have, and a claim in them does not hold.
`Unavailable`: we could not tell, and asking again may help. All three deny; only the HTTP edge maps them to a status.
"""

from __future__ import annotations

from dataclasses import dataclass

from verifier.wire.codes import ReasonCode

MAX_TEXT_CHARACTERS = 400
"""Bound on observed/expected text: they may quote hostile input."""


def printable(text: str) -> str:
    """Text without control characters and within `MAX_TEXT_CHARACTERS`, safe for a log line or a terminal.

    Attack: identifiers and log events with newlines or escape sequences that forge log lines (CVE-2022-23949).
    """
    clean = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[: MAX_TEXT_CHARACTERS + 1])
    return clean if len(clean) <= MAX_TEXT_CHARACTERS else clean[:MAX_TEXT_CHARACTERS] + "..."


@dataclass(frozen=True, slots=True)
class Failure:
    """One claim that failed. `claim` names it (`boot.secure_boot`, `items[2].log`); the rest says what was seen."""

    code: ReasonCode
    claim: str
    observed: str | None = None
    expected: str | None = None
    pcr: int | None = None
    event_index: int | None = None

    def as_json(self) -> dict[str, str | int | None]:
        """The shape that every `--json`, problem and result uses for a reason."""
        return {
            "code": self.code.value,
            "claim": printable(self.claim),
            "observed": None if self.observed is None else printable(self.observed),
            "expected": None if self.expected is None else printable(self.expected),
            "pcr": self.pcr,
            "event_index": self.event_index,
            "remedy": self.code.remedy,
        }

    def line(self) -> str:
        """One line for a person: what, where, seen and expected."""
        where = "" if self.pcr is None else f" PCR {self.pcr}"
        where += "" if self.event_index is None else f" event {self.event_index}"
        seen = "" if self.observed is None else f": {printable(self.observed)}"
        wanted = "" if self.expected is None else f", expected {printable(self.expected)}"
        return f"{printable(self.claim)}{where}{seen}{wanted}"


class Refusal(Exception):
    """Something was refused for `failure`. Only its three subclasses are raised."""

    of_the_node = False
    """Whether what was refused named a live nonce, or was signed by the node: no limit of an address hides why."""

    def __init__(
        self,
        code: ReasonCode,
        claim: str,
        observed: str | None = None,
        expected: str | None = None,
        *,
        pcr: int | None = None,
        event_index: int | None = None,
    ) -> None:
        self.failure = Failure(code, claim, observed, expected, pcr, event_index)
        super().__init__(f"{code.value}: {self.failure.line()}")

    @property
    def code(self) -> ReasonCode:
        return self.failure.code


class MalformedEvidence(Refusal):
    """The input does not have the form that it must have; nothing in it was believed."""


class Rejection(Refusal):
    """The input is well-formed and a claim in it does not hold."""


class Unavailable(Refusal):
    """The answer could not be found now; it is a denial, and trying again may help."""
