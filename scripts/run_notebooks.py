"""Runs the notebooks and stores what they show, without their progress lines.

pip install nbclient ipykernel; python scripts/run_notebooks.py
"""

import nbformat
from nbclient import NotebookClient

from skipbench.config.paths import CONF

FOLDER = CONF.parent / "notebooks"


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=900, resources={"metadata": {"path": FOLDER}}).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times
            if cell.cell_type == "code":
                cell.outputs = [o for o in cell.outputs if shown(o)]
        nbformat.write(notebook, path)


def shown(output: nbformat.NotebookNode) -> bool:
    """False of what goes to stderr on a terminal."""
    return output.output_type == "execute_result" or output.get("name") == "stdout"


if __name__ == "__main__":
    main()
