"""mkdocs hook: adds the generated pages and the pictures of the benchmarks to the site.

Left out: writing files. The pages exist only in the built site, so they cannot go stale.
"""

from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs.generate import api, benchmarks, columns, keys, metrics, nodes

PAGES: dict[str, Callable[[], str]] = {
    "reference/keys.md": keys.page,
    "reference/columns.md": columns.page,
    "reference/nodes.md": nodes.page,
    "reference/metrics.md": metrics.page,
    "reference/api.md": api.page,
    "benchmarks.md": benchmarks.page,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Append the generated pages and pictures."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    for picture in sorted(benchmarks.RESULTS.glob("*.png")):
        path = f"{benchmarks.PICTURES}/{picture.name}"
        files.append(File.generated(config, path, abs_src_path=str(Path(picture).resolve())))
    return files
