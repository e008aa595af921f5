"""Study declarations: shipped ones load and compose, wrong ones are refused in one line; the members are cleared up."""

import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "studies").glob("*.yaml"))
GOOD = {
    "question": "Is it so?",
    "source": "nobody",
    "comparison": "b",
    "smallest_effect": "0.1",
    "arms": "{a: [kl.coef=0], b: [kl.coef=1]}",
}


def declare(folder: Path, **changes: str) -> None:
    (folder / "studies").mkdir(exist_ok=True)
    text = "".join(f"{key}: {value}\n" for key, value in (GOOD | changes).items())
    (folder / "studies/one.yaml").write_text(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_study_composes_or_has_all_its_results(
    name: str, studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    study = studies.study.read_study(name)
    arms = [studies.study.composed(study.overrides_of(arm)) for arm in study.arms if not study.repeatable_at]
    arms = arms or [study.overrides_of(arm) for arm in study.arms]
    # Two arms with equal configurations would compare a run with itself.
    assert all(one != other for place, one in enumerate(arms) for other in arms[:place])
    if study.repeatable_at:
        finished = studies.results.read_results()
        assert all(member.run_key in finished for member in studies.study.members(name, study))


def test_arms_of_an_answered_study_may_name_options_that_are_gone(
    studies: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    gone = {"arms": "{a: [], b: [no.such_option=1]}"}
    monkeypatch.chdir(tmp_path)
    declare(tmp_path, **gone)
    assert studies.run.main(["one", "--limit", "0"]) == 2 and "no.such_option" in capfd.readouterr().err
    declare(tmp_path, **gone, repeatable_at="354d25a")
    assert studies.run.main(["one", "--limit", "0"]) == 0
    capfd.readouterr()
    # Its members are not run with today's options.
    assert studies.run.main(["one"]) == 2
    assert capfd.readouterr().err == "studies: one is answered: `git checkout 354d25a` repeats its missing members\n"
    assert not (tmp_path / "outputs").exists()


def test_required_studies_are_declared() -> None:
    asked = {"kl_direction", "kl_coefficient", "warmups", "reference", "advantage_scale", "tiers", "sft_against_rl"}
    assert asked <= set(NAMES)


def test_control_and_comparison_have_more_seeds_and_come_first(
    studies: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path, arms="{a: [kl.coef=0], b: [kl.coef=1], c: [kl.coef=2]}", seeds="2", comparison_seeds="3")
    monkeypatch.chdir(tmp_path)
    members = studies.study.members("one", studies.study.read_study("one"))
    assert [(member.arm, member.seed) for member in members] == [
        *(("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2), ("c", 0), ("c", 1)),
    ]
    assert members[5].folder == Path("outputs/studies/one/b/seed=2")


def test_arms_with_the_same_overrides_share_their_runs(
    studies: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path)
    text = (tmp_path / "studies/one.yaml").read_text()
    (tmp_path / "studies/two.yaml").write_text(text.replace("{a: [kl.coef=0]", "{c: [kl.coef=2], a: [kl.coef=0]"))
    (tmp_path / "studies/zen.yaml").write_text(f"{text}overrides: [steps=7]\n")
    monkeypatch.chdir(tmp_path)
    members = {name: studies.study.members(name, studies.study.read_study(name)) for name in ("one", "two", "zen")}
    folders = {name: {str(member.folder).split("/")[2] for member in each} for name, each in members.items()}
    assert folders == {"one": {"one"}, "two": {"one", "two"}, "zen": {"zen"}}
    assert {member.arm for member in members["two"]} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"qestion": "typo"}, "qestion"),
        ({"smallest_effect": "much"}, "smallest_effect"),
        ({"smallest_effect": "0"}, "above 0"),
        ({"question": "???"}, "question"),
        ({"comparison": "a"}, "comparison"),
        ({"comparison": "z"}, "comparison"),
        ({"seeds": "9"}, "seeds"),
        ({"key": "policy/nothing"}, "policy/nothing"),
        ({"guards": "[policy/valid]"}, "guards"),
        ({"overrides": "[seed=3]"}, "seed=3"),
        ({"arms": "{a: [], ../b: []}"}, "../b"),
        ({"arms": "{a: [kl.coef=-1], b: []}"}, "a: kl.coef"),
        ({"arms": "{a: [kl.other=1], b: []}"}, "kl.other"),
        ({"repeatable_at": "now"}, "repeatable_at"),
        ({"arms": "{a: [], b: [rubric.tiers.parse=0]}"}, "b: expected rubric.tiers.parse"),
        ({"arms": "{a: ['kl.coef=0,1'], b: []}"}, "kl.coef=0,1"),
        ({"arms": "[a, b]"}, "Dict[str, List[str]]"),
        ({"arms": "{a: [}"}, "one.yaml"),
    ],
)
def test_wrong_declaration_is_refused_in_one_line(
    changes: dict[str, str],
    named: str,
    studies: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    declare(tmp_path, **changes)
    monkeypatch.chdir(tmp_path)
    assert studies.run.main(["one"]) == 2
    shown = capfd.readouterr()
    assert shown.err.startswith("studies: ") and shown.err.count("\n") == 1 and named in shown.err
    assert shown.out == "" and not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("arguments", [["other"], [], ["one", "--limit", "-1"], ["one", "--processes", "0"]])
def test_wrong_study_argument_is_refused_in_one_line(
    arguments: list[str],
    studies: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    declare(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert studies.run.main(arguments) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_members_of_an_older_declaration_are_refused(
    studies: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    declare(tmp_path)
    monkeypatch.chdir(tmp_path)
    [member, *_] = studies.study.members("one", studies.study.read_study("one"))
    member.folder.mkdir(parents=True)
    studies.run.write_json(member.folder / "member.json", member.record())
    assert studies.run.main(["one", "--limit", "0"]) == 0
    declare(tmp_path, arms="{a: [kl.coef=0.5], b: [kl.coef=1]}")
    assert studies.run.main(["one", "--limit", "0"]) == 2
    assert "another declaration" in capfd.readouterr().err


def test_every_claim_names_a_study_or_a_test_that_exists() -> None:
    lines = (ROOT / "dev/claims.md").read_text(encoding="utf-8").splitlines()
    claims = [line for line in lines if re.match(r"\| 00\d \|", line)]
    assert {line[2:5] for line in claims} == {"000", "001", "002", "003", "004"}
    pages = {page.stem for page in (ROOT / "docs/studies").glob("*.md")}
    log = (ROOT / "dev/log.md").read_text(encoding="utf-8")
    for claim in claims:
        *_, behind, _ = claim.split("|")
        tests = re.findall(r"`(tests/\S+\.py)::(\w+)`", behind)
        entries = re.findall(r"\d+", "".join(re.findall(r"`dev/log.md`, entr(?:y|ies) ([\d, and]+)", behind)))
        assert tests or entries or pages & set(re.findall(r"`(\w+)`", behind)), claim
        for file, test in tests:
            assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), test
        for entry in entries:
            assert f"\n## {entry}. " in log, claim


def test_every_arm_named_by_a_claim_is_declared(studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "dev/claims.md").read_text(encoding="utf-8")
    named = re.findall(r"stud(?:y|ies) ((?:`\w+`(?:, | and )?)+), arms? ((?:`[^`]+`(?:, )?)+)", text)
    assert len(named) >= 12
    for names, arms in named:
        declared = {arm for name in re.findall(r"`(\w+)`", names) for arm in studies.study.declaration(name).arms}
        assert set(re.findall(r"`([^`]+)`", arms)) <= declared, names


def test_an_error_of_the_study_ends_the_members_that_run(
    studies: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(member: str) -> object:
        if started:
            raise OSError("no space left")
        started.append(subprocess.Popen(["sleep", "60"]))
        return studies.run.Running(member, started[0], 0.0)

    monkeypatch.setattr(studies.run, "_start", start)
    with pytest.raises(OSError, match="no space left"):
        studies.run.run_members(["one", "two"], 2)
    assert started[0].poll() == -signal.SIGINT
