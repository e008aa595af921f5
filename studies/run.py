"""`python studies/run.py NAME`: run the missing members of the study in `studies/NAME.yaml`, then write its page.

A member is an arm with a seed: an ordinary run of `rookworld train` in `outputs/studies/NAME/ARM/seed=N`, in a process
of its own with one thread. As many members as there are cores run at the same time. After Ctrl-C (exit code 130) or a
kill, the same command resumes interrupted members, skips finished ones and tries failed ones again; the page lists
failures. hydra's multirun, in contrast, runs its members one after the other and starts all of them anew.

Run it in the root folder of the checkout. It writes `docs/studies/NAME.md`, its picture and `docs/studies/index.md`.
Results are kept in `docs/studies/results.jsonl`: a member with a line there is not run again, even on another machine.
Of an answered study, one with `repeatable_at`, it only writes the page: that commit can repeat the members.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from page import write_index, write_page
from results import is_finished, keep_result, read_results
from rookworld_rlvr.app.arguments import OneLineParser
from rookworld_rlvr.errors import BAD_INPUT, DONE, INTERRUPTED, UserError
from rookworld_rlvr.files import make_folder, write_json
from study import MEMBER_FILE, Member, members, read_study

LOG = "log.txt"
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Running:
    """A member's process."""

    member: Member
    process: subprocess.Popen[bytes]
    began: float
    """Start time on the monotonic clock, seconds."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code: 0 even if a member failed, which the page lists."""
    try:
        return _study(argv)
    except UserError as error:
        print(f"studies: {error}", file=sys.stderr)
        return BAD_INPUT


def _study(argv: Sequence[str]) -> int:
    parser = OneLineParser(prog="studies/run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="name of a file in studies/, without .yaml")
    parser.add_argument("--limit", type=int, metavar="N", help="run at most N members now; 0: only write the pages")
    parser.add_argument("--processes", type=int, metavar="N", default=len(os.sched_getaffinity(0)),
                        help="members at a time, one for each core by default")  # fmt: skip
    given = parser.parse_args(argv)
    if given.processes < 1 or (given.limit is not None and given.limit < 0):
        raise UserError("expected --processes from 1 and --limit from 0")
    study = read_study(given.name)
    every = members(given.name, study)
    results = read_results()
    missing = [member for member in every if not is_finished(study, member, results)]
    for member in [member for member in missing if member.run is not None]:
        # The command was killed after the end of the run and before its result was kept.
        keep_result(member)
        missing.remove(member)
    if study.repeatable_at and missing and given.limit != 0:
        raise UserError(f"{given.name} is answered: `git checkout {study.repeatable_at}` repeats its missing members")
    print(f"{given.name}: {len(every) - len(missing)} of {len(every)} members are finished", flush=True)
    if not run_members(missing[: given.limit], given.processes):
        print("interrupted: the same command resumes", flush=True)
        return INTERRUPTED
    print("\n".join(map(str, [*write_page(given.name, study, every, read_results()), write_index()])))
    return DONE


def run_members(waiting: Sequence[Member], processes: int) -> bool:
    """Run members, `processes` at a time; return False if Ctrl-C or SIGTERM ended that.

    After a first signal the running members save and end; a second one kills them. Signals are recorded and handled
    between two polls of the processes, so none of them is lost.
    """
    queue, running, asked, answered = list(waiting), list[Running](), list[int](), 0
    stops = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in stops}
    try:
        while running or (queue and not asked):
            while queue and len(running) < processes and not asked:
                running.append(_start(queue.pop(0)))
            time.sleep(POLL_S)
            if len(asked) > answered:
                for one in running:
                    one.process.send_signal(signal.SIGKILL if answered else signal.SIGINT)
                answered = len(asked)
            ended = [one for one in running if one.process.poll() is not None]
            running = [one for one in running if one not in ended]
            for one in ended:
                _conclude(one, INTERRUPTED if asked else one.process.returncode)
    finally:
        # After an error here, members that still run save and end as after Ctrl-C.
        for one in running:
            one.process.send_signal(signal.SIGINT)
            one.process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)
    return not asked


def _start(member: Member) -> Running:
    """Start a member in a session of its own, so that it gets Ctrl-C only once, from this process."""
    make_folder(member.folder, "outputs")
    record = member.record()
    commits = dict.fromkeys([*record["commits"], commit()])
    write_json(member.folder / MEMBER_FILE, record | {"commits": list(commits), "failure": ""})
    print(f"{member.arm}, seed {member.seed}: started, {member.folder / LOG}", flush=True)
    with (member.folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            member.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
    return Running(member, process, time.monotonic())


def _conclude(one: Running, code: int) -> None:
    """Record the seconds of a process that ended, the reason if it failed, and the result if its run finished."""
    member, seconds = one.member, time.monotonic() - one.began
    failure = "" if code in (DONE, INTERRUPTED) else _reason(member.folder / LOG, code)
    record = member.record()
    total = round(record["seconds"] + seconds, 1)
    write_json(member.folder / MEMBER_FILE, record | {"seconds": total, "failure": failure})
    if member.run is not None:
        keep_result(member)
    done = "finished" if member.run else failure or "interrupted"
    print(f"{member.arm}, seed {member.seed}: {done}, {seconds:.0f} s", flush=True)


def _reason(log: Path, code: int) -> str:
    """Return how the process ended, and its last line about an error, or else its last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("rookworld: ")] or lines
    ended = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    return f"{ended}: {told[-1].removeprefix('rookworld: ')}" if told else ended


def commit() -> str:
    """Return the current commit, with a + after it if the code differs from it; "unknown" outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "conf", "studies")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{'+' if changed else ''}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
