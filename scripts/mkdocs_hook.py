"""mkdocs' hook for the site of docs/: README.md is the front page, api.md comes from docstrings,
keys.md from the schemas, results.html from the bundles in results/community, pictures from FIGURES.
Other links to files outside of docs/ lead to the repository, or are text without a `repo_url`.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from scripts.keys_page import page as keys_page
from skipbench.contrib.artifact.registry import bundles_of, registry_page
from skipbench.report.columns import DEFINITIONS

DEFINITION = "## Definitions\n\n| column | definition |\n|---|---|\n"
API = """\
# Python API

What `import skipbench` gives, and the base class of a method of your own.

::: skipbench.language_model.load
::: skipbench.api.compare
::: skipbench.language_model.LanguageModel
::: skipbench.contrib.export.custom_generate.CustomGenerate
::: skipbench.contrib.oracle.api.verify
::: skipbench.report.frame.frame
::: skipbench.report.published.published
::: skipbench.decode.method.Method
"""
ROOT = Path(__file__).resolve().parent.parent
FIGURES = "results/laptop/figures/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    front = "---\nhide: [toc]\n---\n" + (ROOT / "README.md").read_text(encoding="utf-8")
    for name, text in (("index.md", front), ("api.md", API), ("keys.md", keys_page())):
        files.append(File.generated(config, name, content=text))
    for path in (ROOT / FIGURES).glob("*.svg"):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    bundles = bundles_of(ROOT / "results" / "community")
    files.append(
        File.generated(config, "results.html", content=registry_page(bundles, "index.html"))
    )
    return files


def definitions() -> str:
    """Those of `skipbench/report/columns.py`, as a table."""
    rows = (
        f"| `{name}` | {text.replace('|', chr(92) + '|')} |" for name, text in DEFINITIONS.items()
    )
    return DEFINITION + "\n".join(rows)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = markdown.replace("<!-- definitions -->", definitions())
    folder = ROOT if page.file.src_uri == "index.md" else (ROOT / "docs" / page.file.src_uri).parent
    depth = page.file.src_uri.count("/")

    def link(match: re.Match[str]) -> str:
        text, target = f"[{match[1]}]", match[2]
        if "://" in target or target.startswith("#"):
            return match[0]
        name, sign, anchor = target.partition("#")
        path = (folder / name).resolve().relative_to(ROOT).as_posix()
        if path == "README.md":
            return f"{text}({'../' * depth}index.md{sign}{anchor})"
        path = path.replace(FIGURES, "docs/figures/")
        if path.startswith("docs/"):
            return f"{text}({'../' * depth}{path.removeprefix('docs/')}{sign}{anchor})"
        return f"{text}({config.repo_url}/blob/main/{path})" if config.repo_url else match[1]

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, markdown)
