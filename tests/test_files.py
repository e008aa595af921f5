"""Files: links where there are none, temporary names of several writers, and locks."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rookworld_rlvr import files
from rookworld_rlvr.files import follow, point, replacing, sync, try_lock, unpoint, write_text


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a forked process, and return the process's number once it has ended."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return pid


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with `step-1` and `step-2`, each with one file."""
    for step in ("1", "2"):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        write_text(folder / "state", step)
    return tmp_path


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    files._say_no_links.cache_clear()
    monkeypatch.setattr(Path, "symlink_to", refuse)


def test_copy_of_a_folder_in_the_place_of_a_link_is_replaced(run: Path) -> None:
    shutil.copytree(run / "step-1", run / "best")
    point(run / "best", run / "step-2")
    assert (run / "best").readlink() == Path("step-2")
    assert sorted(path.name for path in run.iterdir()) == ["best", "step-1", "step-2"]


def test_other_folders_in_the_place_of_a_link_are_moved_aside(run: Path) -> None:
    for text in ("mine", "mine too"):
        (run / "best").unlink(missing_ok=True)
        (run / "best").mkdir()
        write_text(run / "best/state", text)
        point(run / "best", run / "step-2")
    assert (run / "best.copied/state").read_text() == "mine" and (run / "best.copied2/state").read_text() == "mine too"
    assert (run / "best").readlink() == Path("step-2")


def test_folder_in_the_place_of_a_link_that_is_to_go_is_removed_or_moved(run: Path) -> None:
    shutil.copytree(run / "step-1", run / "best")
    (run / "last").mkdir()
    for name in ("best", "last", "absent"):
        unpoint(run / name)
    assert sorted(path.name for path in run.iterdir()) == ["last.copied", "step-1", "step-2"]


def test_text_file_takes_the_place_of_a_link_and_is_followed(
    run: Path, no_links: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "day").mkdir()
    shutil.copytree(run / "step-1", run / "day/step-1")
    for step in (1, 2):
        point(run / "last", run / f"step-{step}")
    point(run / "latest", run / "day")
    assert (run / "last").read_text() == "step-2\n" and follow(run / "last") == run / "step-2"
    assert follow(run / "latest/step-1/state") == run / "day/step-1/state"
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "no links can be made here (Operation not permitted): text files" in lines[0]
    assert sorted(path.name for path in run.iterdir()) == ["day", "last", "latest", "step-1", "step-2"]


@pytest.mark.parametrize("text", ["", "..", "/", "../other", "absent", "step-1\nstep-2", "\0", "x" * 5000])
def test_text_file_is_followed_only_to_a_folder_below(run: Path, text: str) -> None:
    (run.parent / "other").mkdir(exist_ok=True)
    write_text(run / "last", text)
    assert follow(run / "last") == run / "last"
    assert follow(str(run / "step-1")) == run / "step-1" and follow("absent/x") == Path("absent/x")


def test_two_processes_that_write_one_file_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    with replacing(file) as writing:
        writing.write_text("half")
        forked(lambda: write_text(file, "whole"))
        assert file.read_text() == "whole" and writing.read_text() == "half"
        writing.write_text("later")
    assert file.read_text() == "later" and list(tmp_path.iterdir()) == [file]


def test_temporary_file_of_a_killed_process_is_removed_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "state.pt"

    def killed() -> None:
        with replacing(file) as writing:
            writing.write_text("half")
            os._exit(0)

    forked(killed)
    [left] = tmp_path.iterdir()
    start = left.name.rpartition(".")[0]
    for name in (f"{start}.{os.getppid()}", f"{start}.x", ".state.pt.writing.elsewhere.1"):
        (tmp_path / name).touch()
    write_text(file, "whole")
    assert not left.exists() and len(list(tmp_path.iterdir())) == 4


def test_long_names_can_be_replaced(tmp_path: Path) -> None:
    for name in ("n" * 250, "ö" * 120):
        write_text(tmp_path / name, "whole")
        assert (tmp_path / name).read_text() == "whole"


def test_file_system_without_locks_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for code, raised in ((errno.ENOLCK, False), (errno.EOPNOTSUPP, False), (errno.EIO, True)):

        def refuse(*_: Any, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fcntl, "flock", refuse)
        if raised:
            with pytest.raises(OSError, match="Input/output"):
                try_lock(descriptor)
        else:
            assert try_lock(descriptor)
    os.close(descriptor)


def test_folder_that_cannot_be_synced_is_no_error_but_a_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", refuse)
    sync(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "file")
