"""`rookworld launch slurm [options] -- [overrides]`: write a SLURM batch file that trains on several machines."""

import argparse
import shlex
from pathlib import Path

from ..errors import DONE, UserError
from ..files import write_text
from .arguments import OneLineParser, positive

# Seconds before the time limit at which SLURM asks the job to stop, and seconds that torchrun then gives it to save.
WARNING_S, SAVING_S = 180, 150
TEMPLATE = """\
#!/usr/bin/env bash
# Written by `rookworld launch slurm`. It starts one torchrun on each machine; together they train one model.
{directives}
set -euo pipefail
cd {folder}

# Seconds that the processes have to save when they are stopped.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={saving}

# The first machine is the rendezvous. The port differs between jobs, because several jobs may share a machine.
port=$((10000 + SLURM_JOB_ID % 20000))
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# If a process dies, all are restarted, and the run resumes from its newest checkpoint (resume=auto).
srun --kill-on-bad-exit=1 {python} -m torch.distributed.run \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={processes} --max-restarts={restarts} \\
    --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$head:$port" \\
    -m rookworld_rlvr train distributed=ddp resume=auto {overrides}
"""


def main(argv: list[str]) -> int:
    """Run the command and return its exit code. Raises UserError, which the command line reports."""
    given = _parser().parse_args(argv)
    text = slurm_script(given)
    if given.dry_run:
        print(text, end="")
        return DONE
    _write(given.output, text)
    print(f"written: {given.output}\nto start it: sbatch {given.output}")
    return DONE


def _write(path: Path, text: str) -> None:
    """Write an executable file. Raises UserError if it cannot be written."""
    try:
        write_text(path, text)
        path.chmod(0o755)
    except OSError as error:
        raise UserError(f"launch slurm: --output: expected a file to write, got {path}: {error.strerror}") from error


def slurm_script(given: argparse.Namespace) -> str:
    """Return the text of the batch file. Raises UserError for an option that is out of range."""
    for name in ("name", "time", "partition", "account"):
        # A space would end the value, and a line break would add a line to the batch file.
        text = getattr(given, name)
        if text is not None and (not text.isprintable() or " " in text):
            raise UserError(f"launch slurm: --{name}: expected printable text without spaces, got {text!r}")
    if given.gpus < 0 or given.restarts < 0:
        raise UserError(f"launch slurm: expected --gpus and --restarts from 0, got {given.gpus} and {given.restarts}")
    directives = {
        "job-name": given.name,
        "nodes": given.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": given.cpus,
        "gpus-per-node": given.gpus or None,
        "time": given.time,
        "partition": given.partition,
        "account": given.account,
        "signal": f"TERM@{WARNING_S}",
        "output": f"{given.name}-%j.log",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in directives.items() if value is not None]
    return TEMPLATE.format(
        # SLURM starts the job again after it lost a machine.
        directives="\n".join([*lines, "#SBATCH --requeue"]),
        folder=shlex.quote(str(given.folder.resolve())),
        python=shlex.quote(given.python),
        processes=given.processes,
        restarts=given.restarts,
        saving=SAVING_S,
        overrides=shlex.join(given.overrides),
    ).replace(" \n", "\n")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld launch", description=__doc__)
    slurm = parser.add_subparsers(dest="system", required=True).add_parser("slurm", help="a batch file for SLURM")
    slurm.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="options of the run, after --")
    slurm.add_argument("--nodes", type=positive, default=1, help="number of machines (default 1)")
    processes = "processes per machine, one for each GPU (default 1)"
    slurm.add_argument("--processes", type=positive, default=1, help=processes)
    slurm.add_argument("--gpus", type=int, default=0, help="GPUs per machine; 0 (default) requests none")
    slurm.add_argument("--cpus", type=positive, default=4, help="cores per machine (default 4)")
    slurm.add_argument("--time", default="24:00:00", help="time limit of the job (default 24:00:00)")
    slurm.add_argument("--partition", help="SLURM's partition")
    slurm.add_argument("--account", help="SLURM's account")
    slurm.add_argument("--name", default="rookworld", help="the job's name (default rookworld)")
    slurm.add_argument("--restarts", type=int, default=3, help="restarts after a process died (default 3)")
    slurm.add_argument(
        "--folder", type=Path, default=Path(), help="the checkout, on every machine (default: the current folder)"
    )
    slurm.add_argument("--python", default=".venv/bin/python", help="Python of the checkout (default .venv/bin/python)")
    slurm.add_argument("--output", type=Path, default=Path("rookworld.sbatch"), help="the file to write")
    slurm.add_argument("--dry-run", action="store_true", help="print the file instead of writing it")
    return parser
