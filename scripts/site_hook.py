"""Hook of mkdocs that adds the generated pages (configuration, metrics, commands) to the site."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Generate the pages from the code and add them; nothing is written into the repository."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(ROOT / "scripts" / "generate_docs.py"), folder], cwd=ROOT, check=True)
        for page in sorted(Path(folder).glob("*.md")):
            files.append(File.generated(config, page.name, content=page.read_text(encoding="utf-8")))
    return files
