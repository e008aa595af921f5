"""The SLURM batch file requests the given resources and is valid bash; invalid options are refused."""

import subprocess
from pathlib import Path

import pytest

from rookworld_rlvr.app.cli import main

GIVEN = ["launch", "slurm", "--nodes", "2", "--processes", "8", "--gpus", "8", "--cpus", "32"]


def test_batch_file_requests_given_resources_and_starts_torchrun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = ["steps=2000", "data.train=my rows.txt"]
    assert main([*GIVEN, "--partition", "gpu", "--time", "02:00:00", "--dry-run", "--", *overrides]) == 0
    text = capsys.readouterr().out
    directives = {line.split("--", 1)[1] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert directives >= {
        "nodes=2",
        "ntasks-per-node=1",
        "gpus-per-node=8",
        "cpus-per-task=32",
        "partition=gpu",
        "requeue",
    }
    assert "time=02:00:00" in directives and not any(line.startswith("account") for line in directives)
    assert '--nnodes="$SLURM_NNODES" --nproc-per-node=8 --max-restarts=3' in text
    assert "rookworld_rlvr train distributed=ddp resume=auto steps=2000 'data.train=my rows.txt'\n" in text
    # torchrun kills the processes shortly before SLURM kills the job.
    seconds = {int(line.split("=")[1]) for line in text.splitlines() if "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=" in line}
    assert seconds == {150} and "signal=TERM@180" in directives
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and not done.stderr


def test_slurm_jobs_use_different_rendezvous_ports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "slurm", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert '--rdzv-endpoint="$head:$port"' in text
    [line] = [line for line in text.splitlines() if line.startswith("port=")]
    ports = [
        int(
            subprocess.run(["bash", "-c", f"{line}; echo $port"], env={"SLURM_JOB_ID": job}, capture_output=True).stdout
        )
        for job in ("7", "8", "4294967295")
    ]
    assert len(set(ports)) == 3 and all(1024 < port < 32768 for port in ports)


def test_batch_file_is_written_and_its_sbatch_command_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.sbatch"
    assert main([*GIVEN, "--output", str(path)]) == 0
    assert f"to start it: sbatch {path}" in capsys.readouterr().out
    assert path.read_text().startswith("#!/usr/bin/env bash\n") and path.stat().st_mode & 0o100
    # Without GPUs none are requested.
    assert main(["launch", "slurm", "--dry-run"]) == 0
    assert "gpus" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["launch"], "launch: the following arguments are required: system"),
        (["launch", "slurm", "--nodes", "0"], "argument --nodes: expected a whole number from 1 on, got '0'"),
        (["launch", "slurm", "--gpus", "-1"], "expected --gpus and --restarts from 0, got -1 and 3"),
        (["launch", "slurm", "--cpus", "many"], "--cpus: expected a whole number from 1 on, got 'many'"),
        (["launch", "slurm", "--output", "/nope/run.sbatch"], "expected a file to write, got /nope/run.sbatch"),
    ],
)
def test_invalid_launch_option_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
