"""Private files: who may read and write them, written whole or not at all, and a typed error for every odd name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edges.private_files import (
    create_private,
    is_there,
    read_bounded,
    read_own,
    read_private,
    rename_private,
    replace_private,
    require_private,
    require_private_directory,
    require_unwritable,
)
from verifier.wire.codes import ReasonCode
from verifier.wire.failures import Refusal, Rejection, Unavailable

ODD_NAMES = ["x\0y", "\ud800", "x" * 300, "text/below"]


def refused(use: Callable[..., object], *arguments: object) -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        use(*arguments)
    return caught.value.code


def test_a_failed_write_leaves_the_old_file_and_no_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    replace_private(file, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Unavailable) as failure:
        replace_private(file, b"new")
    assert failure.value.code is ReasonCode.FILE_UNREADABLE
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_private_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_private(path, b"x" * 11)
    assert refused(read_own, path, 10) is ReasonCode.FILE_UNREADABLE
    for read in (read_private, read_bounded):
        assert refused(read, path, 10) is ReasonCode.SETTING_INVALID
    assert [read(path, 11) for read in (read_own, read_private, read_bounded)] == [b"x" * 11] * 3


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_does_not_decide_whom_to_trust(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "ca.pem"
    path.touch(mode=0o600)
    require_unwritable(path)
    path.chmod(0o644)
    require_unwritable(path)
    path.chmod(mode)
    with pytest.raises(Rejection) as refusal:
        require_unwritable(path)
    assert refusal.value.code is ReasonCode.FILE_MODE_UNSAFE


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "a.yaml"
    os.mkfifo(pipe, 0o600)
    assert refused(read_bounded, pipe, 100) is ReasonCode.FILE_UNREADABLE
    for read in (read_private, read_own):
        assert refused(read, pipe, 100) is ReasonCode.FILE_MODE_UNSAFE


def test_a_replacement_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(Unavailable) as caught:
        replace_private(tmp_path / "folder", b"new")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_private_file_is_never_overwritten(tmp_path: Path) -> None:
    create_private(tmp_path / "key", b"one")
    with pytest.raises(Unavailable) as refused:
        create_private(tmp_path / "key", b"two")
    assert refused.value.code is ReasonCode.FILE_UNREADABLE
    assert read_private(tmp_path / "key") == b"one"


def test_on_a_file_system_that_nobody_can_write_the_mode_of_a_directory_means_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules").touch()
    for path in (tmp_path, tmp_path / "rules"):
        path.chmod(0o777)
        assert refused(require_unwritable, path) is ReasonCode.FILE_MODE_UNSAFE
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((0,) * 8 + (os.ST_RDONLY, 0)))
    require_unwritable(tmp_path)
    assert refused(require_unwritable, tmp_path / "rules") is ReasonCode.FILE_MODE_UNSAFE


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o666])
def test_a_secret_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    create_private(path, b"secret")
    assert path.stat().st_mode & 0o7777 == 0o600
    require_private(path)
    path.chmod(mode)
    for use in (require_private, read_private, lambda path: read_own(path, 10)):
        assert refused(use, path) is ReasonCode.FILE_MODE_UNSAFE


def test_a_link_is_followed_to_what_an_operator_mounted_and_never_to_what_we_wrote(tmp_path: Path) -> None:
    create_private(tmp_path / "real", b"secret")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    assert read_private(link) == b"secret"
    assert refused(read_own, link, 10) is ReasonCode.FILE_UNREADABLE
    assert refused(create_private, link, b"other") is ReasonCode.FILE_UNREADABLE
    replace_private(link, b"new")
    assert (link.is_symlink(), (tmp_path / "real").read_bytes()) == (False, b"secret")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_another_user_is_refused_though_we_could_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    create_private(path, b"secret")
    os.chown(path, 12345, 12345)
    for use in (require_private, read_private, lambda path: read_own(path, 10)):
        assert refused(use, path) is ReasonCode.FILE_MODE_UNSAFE


def test_a_file_that_we_have_not_written_yet_is_none(tmp_path: Path) -> None:
    assert read_own(tmp_path / "file", 10) is None
    replace_private(tmp_path / "next", b"x")
    rename_private(tmp_path / "next", tmp_path / "file")
    assert read_own(tmp_path / "file", 10) == b"x"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_no_file_can_have_is_an_unreadable_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("x")
    path = tmp_path / name
    assert not is_there(path)
    uses = (
        require_private,
        require_unwritable,
        require_private_directory,
        read_private,
        lambda path: read_bounded(path, 10),
        lambda path: create_private(path, b""),
        lambda path: replace_private(path, b""),
        lambda path: rename_private(tmp_path / "text", path),
    )
    for use in uses:
        assert refused(use, path) is ReasonCode.FILE_UNREADABLE
    assert [found.name for found in tmp_path.iterdir()] == ["text"]
