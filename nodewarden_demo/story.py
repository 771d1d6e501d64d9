"""The story of the demo: a node earns trust and a secret, then ten attempts to cheat, each refused with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from nodewarden_demo import acts
from nodewarden_demo.cluster import DemoPod
from nodewarden_demo.expiry import bind_later
from nodewarden_demo.stage import (
    GOOD_BOOT,
    OTHER_CMDLINE,
    SECRET_VALUE,
    SECURE_BOOT_OFF,
    Machine,
    Stage,
    boot_log,
    now,
    register,
)
from nodewarden_demo.steps import Outcome, Promise, Story
from verifier.wire.codes import ReasonCode
from verifier.wire.release import ReleaseResponse

_EDITED = (b"ima_policy=tcb", b"ima_policy=off")
"""The edit that hides a boot without the measurement policy: same length, inside the event's text."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What the first chapter leaves behind: the pod, its token, and the secret as released."""

    pod: DemoPod
    token: str
    response: ReleaseResponse


def tell(story: Story, stage: Stage) -> None:
    """Every chapter, in order."""
    held = _trust(story, stage)
    _forged_evidence(story, stage)
    _other_machines(story, stage, held)
    _other_boots(story, stage, held)


def _trust(story: Story, stage: Stage) -> _Held:
    story.heading("A node proves what it booted, and gets a secret")
    good = stage.good
    pod = DemoPod("llm-0", "0a000000-0000-4000-8000-000000000001")

    def enrolled() -> Outcome:
        return Outcome(
            "enrolled", detail=f"node id {register(stage, good)[:16]}..., the hash of its TPM's endorsement key"
        )

    story.show(
        Promise("enrol", "gpu-node-1 enrols: its TPM proves that it is the one in the inventory", "enrolled"), enrolled
    )
    story.show(
        Promise("attest", "its TPM signs what the machine booted; the baseline accepts it", "affirming"),
        lambda: acts.attest_now(stage, good),
    )
    story.show(
        Promise("pod-steered", "a sensitive pod is steered to verified nodes", "steered"),
        lambda: acts.steer(stage, pod),
    )
    story.show(Promise("pod-admitted", "and admitted", "allowed"), lambda: acts.admit(stage, pod))
    stage.cluster.put_pod(pod)
    story.show(
        Promise("pod-bound", "the scheduler binds it to gpu-node-1", "allowed"),
        lambda: acts.bind(stage, pod, good, "allowed"),
    )
    bound = DemoPod(pod.name, pod.uid, good.name)
    stage.cluster.put_pod(bound)
    token = stage.cluster.pod_token(bound, good.object, now())
    responses: list[ReleaseResponse] = []

    def released() -> Outcome:
        answer = acts.released(good, token)
        if isinstance(answer, Outcome):
            return answer
        responses.append(answer)
        opened = acts.open_in_tpm(good, answer).content == SECRET_VALUE
        return Outcome(
            "opened" if opened else "garbled", detail="encrypted to this TPM and this boot; leased for two minutes"
        )

    story.show(Promise("secret-released", "the pod's secret is released, and opens in that TPM", "opened"), released)
    if not responses:
        raise RuntimeError("no secret was released: the rest of the demo has nothing to show")
    return _Held(bound, token, responses[0])


def _forged_evidence(story: Story, stage: Stage) -> None:
    story.heading("Forged evidence")
    good, bad = stage.good, stage.bad
    accepted = acts.attest_recorded(good)
    story.show(
        Promise("replayed-bundle", "evidence that was accepted is sent again", "refused", ReasonCode.NONCE_USED.value),
        lambda: acts.send_again(good, accepted.sent),
    )
    thief = acts.foreign_key(bad)
    story.show(
        Promise(
            "foreign-ak",
            "another TPM signs in gpu-node-1's name",
            "refused",
            ReasonCode.QUOTE_SIGNATURE_INVALID.value,
        ),
        lambda: acts.attest_recorded(good, signer=thief, holder=bad).outcome,
    )
    genuine = boot_log(GOOD_BOOT)
    good.settings.boot_log_path.write_bytes(genuine.replace(*_EDITED))
    story.show(
        Promise(
            "edited-boot-log",
            "root on the node edits the boot log before it is sent",
            "contraindicated",
            ReasonCode.EVENT_DIGEST_MISMATCH.value,
        ),
        lambda: acts.attest_now(stage, good),
    )
    good.settings.boot_log_path.write_bytes(genuine)
    story.show(
        Promise("recovered", "with the genuine log the node is trusted again", "affirming"),
        lambda: acts.attest_now(stage, good),
    )


def _other_machines(story: Story, stage: Stage, held: _Held) -> None:
    story.heading("A node that is not verified")
    bad = stage.bad
    register(stage, bad)
    direct = DemoPod("llm-1", "0a000000-0000-4000-8000-000000000002", bad.name)
    story.show(
        Promise("direct-node-name", "a pod is set directly onto gpu-node-2", "denied", ReasonCode.RESULT_MISSING.value),
        lambda: acts.refuse(stage, direct),
    )
    story.show(
        Promise(
            "stolen-token",
            "root on gpu-node-2 uses the pod's stolen token",
            "refused",
            ReasonCode.POSSESSION_NOT_PROVED.value,
        ),
        lambda: _as_outcome(acts.release(bad, held.token)),
    )


def _other_boots(story: Story, stage: Stage, held: _Held) -> None:
    good = stage.good
    story.heading("Time passes, and machines reboot")
    story.show(
        Promise("expired-result", "ten minutes later, without new evidence", "denied", ReasonCode.RESULT_EXPIRED.value),
        lambda: bind_later(stage, held.pod, good, seconds=600),
    )
    kept = acts.boot_secrets(good)
    good.tpm.restart()
    story.show(
        Promise(
            "rebooted-tpm",
            "after a restart the released secret no longer opens",
            "does not open",
            ReasonCode.SECRET_DOES_NOT_OPEN.value,
        ),
        lambda: acts.try_to_open(good, held.response, kept),
    )
    _boots(story, stage, good, OTHER_CMDLINE, Promise(
        "other-cmdline",
        "gpu-node-1 boots with another kernel command line",
        "contraindicated",
        ReasonCode.CMDLINE_ARGUMENT_FORBIDDEN.value,
    ))  # fmt: skip
    waiting = DemoPod("llm-2", "0a000000-0000-4000-8000-000000000003")
    stage.cluster.put_pod(waiting)
    story.show(
        Promise("binding-denied", "and takes no sensitive pod any more", "denied", ReasonCode.NODE_NOT_VERIFIED.value),
        lambda: acts.bind(stage, waiting, good, "denied"),
    )
    _boots(story, stage, good, SECURE_BOOT_OFF, Promise(
        "secure-boot-off", "it boots with Secure Boot off", "contraindicated", ReasonCode.SECURE_BOOT_OFF.value
    ))  # fmt: skip
    _boots(
        story,
        stage,
        good,
        GOOD_BOOT,
        Promise("trusted-again", "it boots as it should, and is trusted again", "affirming"),
    )


def _boots(story: Story, stage: Stage, machine: Machine, case: str, promise: Promise) -> None:
    machine.boot(case)
    story.show(promise, lambda: acts.attest_now(stage, machine))


def _as_outcome(answer: ReleaseResponse | Outcome) -> Outcome:
    return answer if isinstance(answer, Outcome) else Outcome("released")
