import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rookworld_rlvr.tasks import Example, Task
from rookworld_rlvr.tasks.corpus import CorpusError, read_corpus

FEN = "8/8/8/4k3/8/8/4P3/4K3 w - - 3 60"
NEXT_FEN = "8/8/8/4k3/8/4P3/8/4K3 b - - 0 60"
P_PROMPT, P_COMPLETION = f"P: {FEN}", "      M: e2e3 e2e4      E: 0.5 -0.1     B: e2e3"
A_PROMPT, A_COMPLETION = f"A: {FEN}+e2e3+e5e6 e2e3+", f"{NEXT_FEN}+0.001+0+0"
P_EXAMPLE = Example(Task.policy, P_PROMPT, P_COMPLETION)
A_EXAMPLE = Example(Task.environment, A_PROMPT, A_COMPLETION)
P_LINE, A_LINE = P_PROMPT + P_COMPLETION, A_PROMPT + A_COMPLETION
Writer = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write(name: str, *lines: str) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    "rows",
    [
        [{"text": P_LINE}, {"text": "hello"}, {"text": A_LINE}],
        [
            {"prompt": P_PROMPT, "completion": P_COMPLETION},
            {"prompt": "x", "completion": "y"},
            {"prompt": A_PROMPT, "completion": A_COMPLETION},
        ],
    ],
)
def test_a_folder_of_data_files_is_read_as_a_hugging_face_dataset(
    write: Writer, tmp_path: Path, rows: list[dict[str, str]]
) -> None:
    (tmp_path / "set").mkdir()
    write("set/train.jsonl", *map(json.dumps, rows))
    write("set/test.jsonl", json.dumps(rows[0]))
    corpus = read_corpus(tmp_path / "set")
    assert (corpus.examples, corpus.rejects) == ((P_EXAMPLE, A_EXAMPLE), {"bad_prompt": 1})
    assert read_corpus(tmp_path / "set", split="test").examples == (P_EXAMPLE,)


@pytest.mark.usefixtures("hub_cache")
def test_a_folder_of_text_files_is_read_a_row_a_line(write: Writer, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    write("set/train.txt", P_LINE, A_LINE)
    assert read_corpus(str(tmp_path / "set")).examples == (P_EXAMPLE, A_EXAMPLE)


@pytest.mark.usefixtures("hub_cache")
def test_a_dataset_saved_to_disk_is_read_with_and_without_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"text": P_LINE}, {"text": A_LINE}])
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.select([1])}).save_to_disk(tmp_path / "two")
    assert read_corpus(tmp_path / "one").examples == (P_EXAMPLE, A_EXAMPLE)
    assert read_corpus(tmp_path / "two", split="test").examples == (A_EXAMPLE,)


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("lines", [[], ["{broken"], ['{"text": "x"}']])
def test_a_folder_that_holds_no_readable_dataset_or_split_raises_one_line(
    write: Writer, tmp_path: Path, lines: list[str]
) -> None:
    (tmp_path / "set").mkdir()
    if lines:
        write("set/train.jsonl", *lines)
    with pytest.raises(CorpusError) as caught:
        read_corpus(tmp_path / "set", split="validation" if lines and "text" in lines[0] else "train")
    assert str(caught.value).startswith("expected a dataset with a split '")
    assert str(tmp_path / "set") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_looks_like_a_name_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, asked = pytest.importorskip("datasets"), []

    def load_dataset(name: str, *, split: str, streaming: bool) -> list[dict[str, str]]:
        asked.append((name, split, streaming))
        return [{"text": P_LINE}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_corpus("someone/rook_1.5", split="validation").examples == (P_EXAMPLE,)
    assert asked == [("someone/rook_1.5", "validation", True)]


def test_a_hub_out_of_reach_raises_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load_dataset(name: str, **_: object) -> None:
        raise ConnectionError(f"Couldn't reach {name!r} on the Hub\nand more")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        CorpusError, match=r"^expected a dataset .* in a/b, got ConnectionError: .* on the Hub$"
    ):
        read_corpus("a/b")
