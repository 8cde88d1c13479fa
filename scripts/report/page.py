"""One self-contained page from page.html, style.css and the scripts beside this file."""

import html
import json
from pathlib import Path
from typing import Any

REPORT = "drawing.js policy.js top.js watch.js whatif.js behaviour.js experts.js trees.js report.js".split()
FOLDER = Path(__file__).resolve().parent
COMPUTED_BY_THE_PAGE = ("effects", "answers")  # in report.json for others; the page has the weights themselves


def fill_page(title: str, data: dict[str, Any], *scripts: str) -> str:
    """The page that these scripts draw from the data; nothing in the data can end its script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(title),
        "STYLE": (FOLDER / "style.css").read_text(encoding="utf-8"),
        "SCRIPT": "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in scripts),
        "DATA": text,
    }
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    for name in ("TITLE", "STYLE", "SCRIPT", "DATA"):  # the data last: whatever it holds stays as it is
        page = page.replace("{{" + name + "}}", parts[name])
    return page


def report_page(report: dict[str, Any], frames: list[dict[str, Any]]) -> str:
    data = {key: value for key, value in report.items() if key not in COMPUTED_BY_THE_PAGE}
    left_out = ("switch_distance_in_spreads", "switch_to")
    data["episodes"] = [{k: v for k, v in e.items() if k not in left_out} for e in report["episodes"]]
    title = f"{report['env_id']} · SMoSE policy report"
    return fill_page(title, data | {"frames": frames}, *REPORT)


def comparison_page(data: dict[str, Any]) -> str:
    return fill_page(f"{data['env_id']} · two SMoSE policies", data, "drawing.js", "compare.js")
