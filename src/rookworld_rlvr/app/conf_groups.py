"""The YAML files behind a command: where they are, and which groups of values a command takes."""

from pathlib import Path

from omegaconf import DictConfig, OmegaConf


def conf_folder() -> Path:
    """The YAML files: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def groups(name: str) -> dict[str, tuple[str, list[str]]]:
    """The groups of `conf/<name>.yaml` in its order: each with its default, "" if it has none, and all its options."""
    found = {}
    for entry in OmegaConf.load(conf_folder() / f"{name}.yaml").defaults:
        # The others are the schema and the file itself, and hydra's own groups.
        if isinstance(entry, DictConfig) and not str(next(iter(entry))).startswith("override "):
            [(key, default)] = entry.items()
            group = str(key).removeprefix("optional ")
            options = sorted(path.stem for path in (conf_folder() / group).glob("*.yaml"))
            found[group] = default or "", options
    return found
