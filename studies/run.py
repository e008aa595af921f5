"""`python studies/run.py NAME`: run what is missing of the study in `studies/NAME.yaml`, then write its page.

A member is an arm with a seed: an ordinary run of `rookworld train` in `outputs/studies/NAME/ARM/seed=N`, made by a
process of its own with one thread, one per core at a time. hydra's multirun makes its members one after the other in
one process and begins all of them again. Here the same command goes on after Ctrl-C (exit code 130) or a kill: a member
that was interrupted resumes, a finished one is left alone, and one that failed is listed on the page and tried again.

Run it at the top of the checkout. It writes `docs/studies/NAME.md`, its picture and `docs/studies/index.md`. Results of
members are kept in `docs/studies/results.jsonl`: what has a line there is not run again, whatever machine has run it.
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
    """Of the monotonic clock, seconds."""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0 even if a member failed, which the page lists."""
    try:
        return _study(argv)
    except UserError as error:
        print(f"studies: {error}", file=sys.stderr)
        return BAD_INPUT


def _study(argv: Sequence[str]) -> int:
    parser = OneLineParser(prog="studies/run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="of a file in studies/, without .yaml")
    parser.add_argument("--limit", type=int, metavar="N", help="run at most N members now; 0: only write the pages")
    parser.add_argument("--processes", type=int, metavar="N", default=len(os.sched_getaffinity(0)),
                        help="members at a time, one for each core by default")  # fmt: skip
    given = parser.parse_args(argv)
    if given.processes < 1 or (given.limit is not None and given.limit < 0):
        raise UserError("expected --processes from 1 and --limit from 0")
    study = read_study(given.name)
    every = members(given.name, study)
    results = read_results()
    missing = [member for member in every if not is_finished(member, results)]
    for member in [member for member in missing if member.run is not None]:
        # A kill came between the end of its run and its result.
        keep_result(member)
        missing.remove(member)
    print(f"{given.name}: {len(every) - len(missing)} of {len(every)} members are finished", flush=True)
    if not run_members(missing[: given.limit], given.processes):
        print("interrupted: the same command goes on", flush=True)
        return INTERRUPTED
    print("\n".join(map(str, [*write_page(given.name, study, every, read_results()), write_index()])))
    return DONE


def run_members(waiting: Sequence[Member], processes: int) -> bool:
    """Run members, so many at a time; False if Ctrl-C or SIGTERM ended that, once all have saved. A second one kills.

    Signals are noted and answered between two looks at the processes, so none of them is lost.
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
        for number, handler in before.items():
            signal.signal(number, handler)
    return not asked


def _start(member: Member) -> Running:
    """Start a member in a session of its own, so that Ctrl-C reaches it once, from here."""
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
    """Note how a process ended: its seconds, and the reason where it failed."""
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
    """The last line that the command wrote about an error, else its last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("rookworld: ")] or lines
    ended = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    return f"{ended}: {told[-1].removeprefix('rookworld: ')}" if told else ended


def commit() -> str:
    """The commit that runs, with + behind it if what runs differs from it; "unknown" outside a checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "conf", "studies")
    return f"{git('rev-parse', '--short', 'HEAD') or 'unknown'}{'+' if changed else ''}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
