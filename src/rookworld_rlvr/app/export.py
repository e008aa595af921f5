"""`rookworld export RUN --to FOLDER [--push NAME]`: a checkpoint with a model card, and on request to the hub."""

import argparse
from pathlib import Path

from ..errors import DONE, UserError
from ..report.export import export, upload_plan
from .arguments import OneLineParser, warn_of_unfinished


def main(argv: list[str]) -> int:
    """Returns the exit code. Raises UserError or OSError, which the command line reports."""
    given = _parser().parse_args(argv)
    if given.send and not given.push:
        raise UserError("export: expected --push NAME beside --send")
    name = given.push or given.to.resolve().name
    warn_of_unfinished(given.run)
    files = export(given.run, given.to, checkpoint=given.checkpoint, name=name)
    print(f"{len(files)} files: {given.to}; its card: {given.to / 'README.md'}")
    if given.push:
        _push(files, given.to, given.push, send=given.send)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="rookworld export", description=__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder, or outputs/latest")
    parser.add_argument("--to", metavar="FOLDER", type=Path, required=True, help="a new or an empty folder")
    parser.add_argument("--checkpoint", default="last", help="last (default, which was evaluated), best or step-N")
    parser.add_argument("--push", metavar="NAME", help="what would be sent to the hub under this name, as user/model")
    parser.add_argument("--send", action="store_true", help="with --push: send it")
    return parser


def _push(files: list[Path], folder: Path, name: str, *, send: bool) -> None:
    """Say what an upload sends, and send it if `send`. Raises UserError if the hub refuses."""
    print("\n".join(upload_plan(files, name)))
    if not send:
        print("nothing was sent; with --send it is")
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        api = HfApi()
        api.create_repo(name, exist_ok=True)
        print(f"sent: {api.upload_folder(repo_id=name, folder_path=folder)}")
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(f"export: --push {name}: {' '.join(str(error).split())}") from error
