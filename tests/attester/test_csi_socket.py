"""Where the provider listens: a socket that root alone reaches, and never in the place of anything else."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from attester.csi_socket import MAX_PATH_BYTES, is_still, listening, require_guarded
from tests.attester.csi_provider import socket_in
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal


def bound(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address.removeprefix("unix:"))
    listener.listen()
    return listener


def code_of(path: Path) -> ReasonCode:
    with pytest.raises(Refusal) as refusal, listening(path, never):
        pass
    return refusal.value.code


def never(address: str) -> None:
    raise AssertionError(f"bound {address}")


def test_the_socket_is_closed_to_others_and_gone_afterwards(tmp_path: Path) -> None:
    path, open_ones = socket_in(tmp_path), []
    before = os.umask(0o022)
    with listening(path, lambda address: open_ones.append(bound(address))) as made:
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert is_still(path, made)
    assert not path.exists()
    assert os.umask(before) == 0o022
    open_ones[0].close()


def test_what_a_provider_left_that_was_killed_is_replaced(tmp_path: Path) -> None:
    path = socket_in(tmp_path)
    bound(str(path)).close()
    assert path.is_socket()
    listeners = []
    with listening(path, lambda address: listeners.append(bound(address))) as made:
        assert is_still(path, made)
    listeners[0].close()


def test_a_provider_that_answers_is_not_replaced(tmp_path: Path) -> None:
    path = socket_in(tmp_path)
    with bound(str(path)):
        assert code_of(path) is ReasonCode.ADDRESS_UNAVAILABLE
        assert path.is_socket()


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    path = socket_in(tmp_path)
    path.write_text("precious")
    assert code_of(path) is ReasonCode.SETTING_INVALID
    assert path.read_text() == "precious"
    path.unlink()
    # Nor is a link followed to a socket elsewhere.
    path.symlink_to(tmp_path / "elsewhere.sock")
    assert code_of(path) is ReasonCode.SETTING_INVALID


@pytest.mark.parametrize(
    "path", ["relative.sock", "/run/p/.sock", "/run/p/no-socket", "/run/p/a.b.sock", f"/{'x' * MAX_PATH_BYTES}/a.sock"]
)
def test_a_path_at_which_the_driver_would_not_look_is_refused(path: str) -> None:
    assert code_of(Path(path)) is ReasonCode.SETTING_INVALID


def test_without_the_drivers_folder_nothing_is_made(tmp_path: Path) -> None:
    assert code_of(tmp_path / "absent/nodewarden.sock") is ReasonCode.CSI_DRIVER_MISSING
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_a_folder_into_which_others_may_put_a_socket_is_refused(tmp_path: Path, mode: int) -> None:
    path = socket_in(tmp_path)
    path.parent.chmod(mode)
    assert code_of(path) is ReasonCode.FILE_MODE_UNSAFE
    path.parent.chmod(0o755)
    # The same for one above it, which whoever may write there could put another in place of.
    tmp_path.chmod(mode & 0o777)
    assert code_of(path) is ReasonCode.FILE_MODE_UNSAFE
    tmp_path.chmod(0o700)
    require_guarded(path.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    path = socket_in(tmp_path)
    os.chown(path.parent, 65534, 65534)
    assert code_of(path) is ReasonCode.FILE_MODE_UNSAFE


def test_a_socket_that_is_not_ours_any_more_is_left_alone(tmp_path: Path) -> None:
    path, listeners = socket_in(tmp_path), []
    with listening(path, lambda address: listeners.append(bound(address))) as made:
        path.unlink()
        assert not is_still(path, made)
        listeners.append(bound(str(path)))
        assert not is_still(path, made)
    assert path.is_socket()
    for listener in listeners:
        listener.close()


def test_an_address_that_cannot_be_bound_is_told(tmp_path: Path) -> None:
    def refused(_: str) -> None:
        raise RuntimeError("no")

    with pytest.raises(Refusal) as refusal, listening(socket_in(tmp_path), refused):
        pass
    assert refusal.value.code is ReasonCode.ADDRESS_UNAVAILABLE
