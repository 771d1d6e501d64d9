"""The sealed store: what was put comes back, and no altered byte of file or key goes unseen."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admission.sealed_store import MAX_SECRET_BYTES, SealedStore, SecretVersion
from verifier.wire.codes import ReasonCode
from verifier.wire.encoding import encode_base64url
from verifier.wire.failures import Refusal

SECRET = b"correct horse battery staple"


@pytest.fixture
def store(tmp_path: Path) -> SealedStore:
    made = SealedStore.create(tmp_path / "secrets", tmp_path / "key")
    made.put("llm/key", SECRET)
    return made


def code_of(store: SealedStore, name: str = "llm/key") -> ReasonCode:
    with pytest.raises(Refusal) as caught:
        store.read(name)
    assert SECRET.decode() not in str(caught.value)
    return caught.value.code


def test_a_secret_comes_back_as_it_was_put_and_its_version_rises(store: SealedStore) -> None:
    assert store.read("llm/key") == SECRET
    assert store.put("llm/key", b"next") == SecretVersion("llm/key", 2)
    assert store.read("llm/key") == b"next"
    store.put("a", b"\0")
    assert store.names() == (SecretVersion("a", 1), SecretVersion("llm/key", 2))


def test_a_deleted_secret_is_unknown(store: SealedStore) -> None:
    store.delete("llm/key")
    assert code_of(store) is ReasonCode.SECRET_UNKNOWN
    with pytest.raises(Refusal) as caught:
        store.delete("llm/key")
    assert caught.value.code is ReasonCode.SECRET_UNKNOWN


def test_the_file_shows_no_content_and_only_its_owner_may_read_it(store: SealedStore, tmp_path: Path) -> None:
    assert SECRET not in (tmp_path / "secrets").read_bytes()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("secrets", "key")] == [0o600, 0o600]


def test_every_altered_byte_of_the_file_is_seen(store: SealedStore, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    whole = path.read_bytes()
    for position in range(len(whole)):
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        assert code_of(store) is ReasonCode.SECRET_STORE_INVALID
    path.write_bytes(whole)
    assert store.read("llm/key") == SECRET


def test_a_file_cut_short_or_with_bytes_after_it_is_seen(store: SealedStore, tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    whole = path.read_bytes()
    for cut in [*(whole[:n] for n in range(0, len(whole), 5)), whole[:-1], whole + b"\n", whole + whole]:
        path.write_bytes(cut)
        assert code_of(store) is ReasonCode.SECRET_STORE_INVALID


def test_every_altered_byte_of_the_key_is_seen(store: SealedStore, tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = path.read_bytes()
    for position in range(len(key)):
        changed = bytearray(key)
        changed[position] ^= 1
        path.write_bytes(changed)
        assert code_of(store) is ReasonCode.SECRET_STORE_INVALID
    for wrong in (b"", key[:-1], key + b"\n"):
        path.write_bytes(wrong)
        assert code_of(store) is ReasonCode.SECRET_STORE_INVALID


def test_an_entry_moved_to_another_name_or_version_does_not_open_even_under_a_good_seal(store: SealedStore) -> None:
    keys = store._keys()
    entries = dict(store._entries(keys))
    moved = {"other": entries["llm/key"], "llm/key": {**entries["llm/key"], "version": 2}}
    store._replace(moved, keys)
    assert code_of(store, "other") is ReasonCode.SECRET_STORE_INVALID
    assert code_of(store, "llm/key") is ReasonCode.SECRET_STORE_INVALID


@pytest.mark.parametrize("name", ["secrets", "key"])
def test_a_file_that_others_can_read_is_refused(store: SealedStore, tmp_path: Path, name: str) -> None:
    (tmp_path / name).chmod(0o640)
    assert code_of(store) is ReasonCode.FILE_MODE_UNSAFE


@pytest.mark.parametrize("name", ["secrets", "key"])
def test_a_missing_file_is_no_empty_store(store: SealedStore, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    assert code_of(store) is ReasonCode.FILE_UNREADABLE
    with pytest.raises(Refusal) as caught:
        store.put("new", b"x")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE


def test_creating_a_store_never_overwrites_one(store: SealedStore, tmp_path: Path) -> None:
    with pytest.raises(Refusal) as caught:
        SealedStore.create(tmp_path / "secrets", tmp_path / "key")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE
    assert store.read("llm/key") == SECRET


def test_writers_at_the_same_time_lose_nothing(store: SealedStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.put(f"n{n % 4}", b"x"), range(24)))
    assert [(secret.name, secret.version) for secret in store.names()] == [
        ("llm/key", 1),
        *[(f"n{n}", 6) for n in range(4)],
    ]


def test_a_write_that_dies_half_way_leaves_the_old_store(store: SealedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(*_: object) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying)
        with pytest.raises(Refusal) as caught:
            store.put("llm/key", b"next")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE
    assert store.read("llm/key") == SECRET
    store.put("llm/key", b"next")
    assert store.read("llm/key") == b"next"


def test_an_empty_or_oversized_secret_is_refused(store: SealedStore) -> None:
    for content in (b"", b"x" * (MAX_SECRET_BYTES + 1)):
        with pytest.raises(Refusal) as caught:
            store.put("a", content)
        assert caught.value.code is ReasonCode.BODY_TOO_LARGE


def test_a_sealed_file_of_another_format_is_refused(store: SealedStore, tmp_path: Path) -> None:
    keys = store._keys()
    line = json.dumps({"format": "other", "secrets": {}}).encode() + b"\n"
    seal = encode_base64url(b"\0" * 12 + keys.seal.encrypt(b"\0" * 12, b"", line)).encode()
    (tmp_path / "secrets").write_bytes(line + seal + b"\n")
    assert code_of(store) is ReasonCode.SECRET_STORE_INVALID


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_no_store(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = SealedStore.create(folder / "secrets", folder / "key")
    (folder / "secrets").write_bytes(content)
    assert code_of(store) is ReasonCode.SECRET_STORE_INVALID


def test_a_store_that_cannot_be_made_leaves_no_key_that_blocks_the_next_try(tmp_path: Path) -> None:
    for path in (tmp_path / "absent/secrets", tmp_path / ("x" * 300), tmp_path / "x\0y"):
        with pytest.raises(Refusal) as caught:
            SealedStore.create(path, tmp_path / "key")
        assert caught.value.code is ReasonCode.FILE_UNREADABLE
        assert list(tmp_path.iterdir()) == []
        assert not SealedStore(path, tmp_path / "key").exists()
    SealedStore.create(tmp_path / "secrets", tmp_path / "key").put("a", SECRET)


def test_a_store_is_never_made_over_another_file(tmp_path: Path) -> None:
    (tmp_path / "secrets").write_text("other")
    with pytest.raises(Refusal) as caught:
        SealedStore.create(tmp_path / "secrets", tmp_path / "key")
    assert caught.value.code is ReasonCode.FILE_UNREADABLE
    assert (tmp_path / "secrets").read_text() == "other"
    with pytest.raises(Refusal) as caught:
        SealedStore.create(tmp_path / "one", tmp_path / "one")
    assert caught.value.code is ReasonCode.SETTING_INVALID
    assert [path.name for path in tmp_path.iterdir()] == ["secrets"]
