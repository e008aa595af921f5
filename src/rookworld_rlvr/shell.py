"""Commands to print: they work as they are pasted into a shell, whatever the names of folders and files."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

# Texts that hydra's grammar reads as they stand: paths with a separator, and names. It would read `1e3` as a number.
PLAIN_VALUE = re.compile(r"[\w.@%+:-]*/[\w.@%+:/-]*|[A-Za-z_][\w.-]*", re.ASCII)
WORDS_OF_HYDRA = frozenset({"null", "true", "false", "inf", "nan"})
# Characters that keep a meaning inside double quotes.
SPECIAL_IN_QUOTES = frozenset('"$`\\!')


def shell_word(text: str) -> str:
    """Return a text as one word of a shell's command line.

    >>> print(shell_word("outputs/a"), shell_word("out (1)"), shell_word("resume='out (1)'"))
    outputs/a 'out (1)' "resume='out (1)'"
    """
    if "'" in text and not SPECIAL_IN_QUOTES & set(text):
        return f'"{text}"'
    return shlex.quote(text)


def quoted(value: str) -> str:
    """Return a text in hydra's quotes.

    >>> print(quoted("it's"))
    'it\\'s'
    """
    # hydra reads a backslash as itself, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), value)
    return f"'{escaped}'"


def setting(option: str, value: object) -> str:
    """Return an override that gives an option this text as its value, in hydra's grammar.

    >>> print(setting("resume", "outputs/latest"), setting("resume", "outputs/seed=0"))
    resume=outputs/latest resume='outputs/seed=0'
    """
    text = str(value)
    plain = PLAIN_VALUE.fullmatch(text) and text.lower() not in WORDS_OF_HYDRA
    return f"{option}={text if plain else quoted(text)}"


def command(*words: object) -> str:
    """Return a command of rookworld with these arguments."""
    return " ".join([rookworld(), *(shell_word(str(word)) for word in words)])


def train_command(*words: object) -> str:
    """Return the command that trains: `bash train.sh` in a checkout, else `rookworld train` or the user's script."""
    program = ["bash train.sh"] if Path("train.sh").is_file() and not own_script() else [rookworld(), "train"]
    return " ".join([*program, *(shell_word(str(word)) for word in words)])


def rookworld() -> str:
    """Return the program as a user can type it: `rookworld` if it is on the PATH, else this Python's script.

    A script of the user's that calls our command line, because it registers a task, is named with its Python.
    """
    if own := own_script():
        return f"{shell_word(sys.executable)} {shell_word(own)}"
    script = Path(sys.executable).with_name("rookworld")
    if shutil.which("rookworld") or not script.is_file():
        return "rookworld"
    return shell_word(os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script))


def own_script() -> str:
    """Return the path of the user's script that calls our command line, with a task of its own; empty if there is none.

    Our programs have no such script: they are started by name or by module, or do not call the command line.
    """
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "")
    if script.suffix != ".py" or script.stem == "__main__" or f"{__package__}.app.cli" not in sys.modules:
        return ""
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)
