"""Runs the notebooks and writes NAME.ipynb with outputs and plots beside each NAME.py.

`python notebooks/execute.py [NAME ...]`
"""

import base64
import io
import os
import sys
from pathlib import Path

import jupytext
import matplotlib.font_manager
import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
COLORS = 24  # of a plot in a notebook, so that the files stay small


def scripts(names=()) -> list[Path]:
    """The percent scripts that are notebooks, in their order, or those of these names."""
    return [path for path in sorted(HERE.glob("[0-9]_*.py")) if not names or path.stem in names]


def read(script: Path):
    """The notebook of a percent script, without outputs; the id of a cell is its place."""
    notebook = jupytext.read(script)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
    return notebook


def execute(script: Path):
    """The notebook with its outputs, without what changes from run to run.

    Raises ValueError where a cell writes to stderr.
    """
    notebook = read(script)
    # building this cache inside a notebook would write to its stderr
    matplotlib.font_manager.get_font_names()
    place = {"metadata": {"path": str(HERE)}}
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", coalesce_streams=True, resources=place
    ).execute()
    notebook.metadata["language_info"] = {"name": "python", "file_extension": ".py"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if output.get("name") == "stderr":
                raise ValueError(f"{script.name}: a cell wrote to stderr: {output['text'].strip()}")
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = _smaller(output["data"]["image/png"])
    return notebook


def _smaller(png: str) -> str:
    picture, packed = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def main(names) -> None:
    """Executes and writes these notebooks, or all; each file is replaced as a whole."""
    for script in scripts(names):
        target = script.with_suffix(".ipynb")
        temporary = target.with_name(f".{target.name}.part")
        text = nbformat.writes(execute(script), version=4)
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, target)
        print(f"{target.name}: {len(text) / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
