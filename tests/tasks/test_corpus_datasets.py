import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rookworld_rlvr.errors import UserError
from rookworld_rlvr.tasks.corpus import read_corpus, split_line
from rookworld_rlvr.tasks.types import Example

Writer = Callable[..., Path]
Rows = tuple[Example, ...]


def line(row: Example) -> str:
    return f"{row.prompt}{row.completion}"


def in_one_column(row: Example) -> dict[str, str | None]:
    return {"text": line(row)}


def in_two_columns(row: Example) -> dict[str, str | None]:
    return {"prompt": row.prompt, "completion": row.completion}


@pytest.fixture(scope="module")
def examples(make_lines: Callable[[int, int], list[str]]) -> Rows:
    """Return one row of each task, as read from a text file."""
    rows = tuple(map(split_line, make_lines(0, 1)))
    assert [row.task for row in rows] == ["policy", "environment"]
    return rows


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("spelled", [in_one_column, in_two_columns])
def test_a_folder_of_data_files_is_read_as_a_hugging_face_dataset(
    write: Writer, tmp_path: Path, spelled: Callable[..., dict[str, str | None]], examples: Rows
) -> None:
    policy, environment = examples
    (tmp_path / "set").mkdir()
    rows = [spelled(row) for row in (policy, Example("policy", "hel", "lo"), environment)]
    write("set/train.jsonl", *map(json.dumps, rows))
    write("set/test.jsonl", json.dumps(rows[0]))
    corpus = read_corpus(tmp_path / "set")
    assert (corpus.examples, corpus.rejects) == (examples, {"bad_prompt": 1})
    assert read_corpus(f"{tmp_path / 'set'}:test").examples == (policy,)


@pytest.mark.usefixtures("hub_cache")
def test_folder_of_text_files_is_read_one_row_per_line(write: Writer, tmp_path: Path, examples: Rows) -> None:
    (tmp_path / "set").mkdir()
    write("set/train.txt", *map(line, examples))
    assert read_corpus(str(tmp_path / "set")).examples == examples


@pytest.mark.usefixtures("hub_cache")
def test_a_dataset_saved_to_disk_is_read_with_and_without_splits(tmp_path: Path, examples: Rows) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(list(map(in_one_column, examples)))
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(tmp_path / "two")
    assert read_corpus(tmp_path / "one").examples == examples
    assert read_corpus(f"{tmp_path / 'two'}:test").examples == examples[1:]


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("lines", [[], ["{broken"], ['{"text": "x"}']])
def test_folder_without_dataset_or_split_raises_one_line_error(write: Writer, tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "set").mkdir()
    if lines:
        write("set/train.jsonl", *lines)
    with pytest.raises(UserError) as caught:
        read_corpus(f"{tmp_path / 'set'}{':validation' if lines and 'text' in lines[0] else ''}")
    assert str(caught.value).startswith("expected a dataset with a split '")
    assert str(tmp_path / "set") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_dataset_name_is_loaded_from_the_hub(monkeypatch: pytest.MonkeyPatch, examples: Rows) -> None:
    datasets, names = pytest.importorskip("datasets"), []

    def load_dataset(name: str, *, split: str, streaming: bool) -> list[dict[str, str | None]]:
        names.append((name, split, streaming))
        return [in_one_column(examples[0])]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_corpus("someone/rook_1.5:validation").examples == examples[:1]
    assert names == [("someone/rook_1.5", "validation", True)]


def test_unreachable_hub_raises_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load_dataset(name: str, **_: object) -> None:
        raise ConnectionError(f"Couldn't reach {name!r} on the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UserError, match=r"^expected a dataset .* in a/b, got ConnectionError: .* on the Hub$"):
        read_corpus("a/b")
