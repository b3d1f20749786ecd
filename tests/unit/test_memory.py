"""Free memory: the machine's, or what the container leaves of it, whichever is less."""

import pytest

from specviz.hardware import memory


def _group(folder, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return str(folder)


def test_a_machine_has_memory_and_no_more_than_its_container_allows(monkeypatch):
    assert 2**20 < memory.free_memory_bytes("cpu") < 2**50
    monkeypatch.setattr(memory, "container_room", lambda: 1234)
    assert memory.free_memory_bytes("cpu") == 1234


def test_both_versions_of_control_groups_are_read_and_file_pages_count_as_free(tmp_path, monkeypatch):
    second = _group(
        tmp_path / "two", memory__max="1000\n", memory__current="700\n", memory__stat="anon 1\ninactive_file 100\n"
    )
    first = _group(
        tmp_path / "one",
        memory__limit_in_bytes="5000",
        memory__usage_in_bytes="1000",
        memory__stat="total_inactive_file 0\n",
    )
    names = [group[1:] for group in memory._GROUPS]
    monkeypatch.setattr(memory, "_GROUPS", ((second, *names[0]), (first, *names[1])))
    assert memory.container_room() == 400
    monkeypatch.setattr(memory, "_GROUPS", ((str(tmp_path / "none"), *names[0]), (first, *names[1])))
    assert memory.container_room() == 4000


@pytest.mark.parametrize("limit", ["max", "nonsense"])
def test_no_limit_and_an_unreadable_one_are_no_limit(tmp_path, monkeypatch, limit):
    folder = _group(tmp_path / "g", memory__max=limit, memory__current="1", memory__stat="inactive_file 0")
    monkeypatch.setattr(memory, "_GROUPS", ((folder, *memory._GROUPS[0][1:]),))
    assert memory.container_room() == memory.UNLIMITED


def test_a_container_that_is_full_has_nothing_free(tmp_path, monkeypatch):
    folder = _group(tmp_path / "g", memory__max="10", memory__current="50", memory__stat="")
    monkeypatch.setattr(memory, "_GROUPS", ((folder, *memory._GROUPS[0][1:]),))
    assert memory.container_room() == 0
