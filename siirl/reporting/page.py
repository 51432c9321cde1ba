"""Frame of the offline pages: template, style, and the single script that the page's policy allows.

Texts of a page come from environments, models and users. Templates therefore escape everything
except parts that this project marks as safe (its diagrams, style and script). The content security
policy allows one script, by the hash of its text.
"""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent
STYLE, SCRIPT = TEMPLATES / "page.css", TEMPLATES / "page.js"


def render_page(
    template: str,
    *,
    filters: Mapping[str, Callable[..., Any]],
    live_s: int | None = None,
    **values: Any,
) -> str:
    """Fill a template of this folder.

    Args:
        template: File name of the template, which extends page.html.
        filters: Functions that the template calls.
        live_s: Seconds after which the page of a running job reloads; None for a finished one.
        values: Names in the template.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= dict(filters)
    script = SCRIPT.read_text(encoding="utf-8")
    return environment.get_template(template).render(
        live_s=live_s,
        style=Markup(STYLE.read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash=hash_of(script),
        **values,
    )


def hash_of(script: str) -> str:
    """The source expression that allows an inline script (CSP level 3, section 2.3.1)."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"sha256-{digest}"


def write_page(file: Path, page: str) -> Path:
    """Write a page atomically; lone surrogates from models become `?`."""
    unfinished = file.with_suffix(".part")
    unfinished.write_text(page, encoding="utf-8", errors="replace")
    os.replace(unfinished, file)
    return file
