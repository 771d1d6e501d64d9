"""Evidence of machines behind real Node objects: the verifier knows the node by a token of the API server's making."""

from __future__ import annotations

from pathlib import Path

import jwt
import pytest

from nodewarden_demo.software_tpm import LocalCa
from nodewarden_demo.stage import OTHER_CMDLINE
from tests.e2e.control_plane import ControlPlane
from tests.e2e.machines import VerifierService, machine, node_token
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Rejection
from verifier.wire.result import Verdict


def claims_of(result: str) -> dict[str, object]:
    return dict(jwt.decode(result, options={"verify_signature": False}))


def test_a_machine_is_affirming_for_the_node_that_its_token_names(
    plane: ControlPlane, verifier: VerifierService, maker: LocalCa, tmp_path: Path
) -> None:
    node = plane.admin.must_get("/api/v1/nodes/fake-19")
    with machine(plane, verifier, maker, tmp_path / "m", "fake-19") as made:
        answer = made.attest()
        assert [reason.code for reason in answer.reasons] == []
        assert answer.verdict is Verdict.AFFIRMING
        assert node["metadata"]["uid"] in str(claims_of(verifier.results()["fake-19"]))

        made.boot(OTHER_CMDLINE)
        assert made.attest().verdict is not Verdict.AFFIRMING


def test_a_machine_with_another_nodes_token_is_refused(
    plane: ControlPlane, verifier: VerifierService, maker: LocalCa, tmp_path: Path
) -> None:
    with machine(plane, verifier, maker, tmp_path / "m", "fake-18") as made:
        path = made.settings.node_token_path
        assert path is not None
        path.write_text(node_token(plane, "fake-17"))
        with pytest.raises(Rejection) as refused:
            made.attest()
    assert refused.value.code is ReasonCode.VERIFIER_REFUSED
