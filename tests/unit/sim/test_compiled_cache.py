"""Where compiled code is kept: apart for every state of the sources, and somewhere even if they lie in a read-only folder."""

from pathlib import Path

import pytest

from sim.compiled import _cache_folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    root = tmp_path / "sources"
    for name in ("sim/a.py", "replicas/live/b.py", "routers/c.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x = 1\n")
    return root


@pytest.mark.parametrize("name", ["sim/a.py", "replicas/live/b.py", "routers/new/d.py"])
def test_an_edit_at_any_depth_does_not_go_on_running_the_old_code(sources: Path, name: str) -> None:
    before = _cache_folder(sources)
    (sources / name).parent.mkdir(exist_ok=True)
    (sources / name).write_text("x = 2\n")
    assert _cache_folder(sources) != before


def test_a_file_that_was_renamed_is_another_state(sources: Path) -> None:
    before = _cache_folder(sources)
    (sources / "sim" / "a.py").rename(sources / "sim" / "aa.py")
    assert _cache_folder(sources) != before


def test_sources_that_cannot_be_written_are_compiled_into_the_users_own_cache(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "__pycache__").write_text("a file where a folder would have to be made")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    folder = _cache_folder(sources)
    assert folder is not None
    assert folder.parent == tmp_path / "own" / "daybreak"


def test_a_user_without_a_home_still_has_a_cache(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sources / "__pycache__").write_text("a file where a folder would have to be made")
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources / "__pycache__"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = _cache_folder(sources)
    assert folder is not None
    assert folder.is_relative_to(tmp_path)
