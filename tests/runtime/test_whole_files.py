"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from smelt.runtime.whole_files import check_writable, write_whole, written_whole


def test_a_failure_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "report.html"
    write_whole(path, "earlier")
    with pytest.raises(OSError, match="full"), written_whole(path) as file:
        file.write(b"half of")
        raise OSError("the disk is full")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "earlier" and os.listdir(tmp_path) == ["report.html"]
    write_whole(path, "new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["report.html"]


def test_permissions_and_links_stay(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    write_whole(path, "1")
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "2")
    assert link.is_symlink() and path.read_text() == "2" and stat.S_IMODE(path.stat().st_mode) == 0o640


def test_what_cannot_be_written_is_known_before(tmp_path):
    check_writable(tmp_path / "new")
    assert os.listdir(tmp_path) == []
    (tmp_path / "old").write_text("old")
    check_writable(tmp_path / "old")
    check_writable("/dev/null")
    assert (tmp_path / "old").read_text() == "old"
    with pytest.raises(IsADirectoryError):
        check_writable(tmp_path)
    with pytest.raises(FileNotFoundError):
        check_writable(tmp_path / "missing" / "new")
    with pytest.raises(NotADirectoryError):
        check_writable(tmp_path / "old" / "new")


def test_what_is_no_file_is_written_directly():
    write_whole("/dev/null", "text")
    with pytest.raises(OSError, match="No space"):
        write_whole("/dev/full", "text")
