"""A web page in one file, for wide screens, phones and paper: tables, pictures and text. What is given is escaped."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

STYLE = """
:root { --ink: #222; --soft: #666; --line: #e4e4e4; --accent: #c2410c; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1160px; padding: 24px 20px 64px; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 1.35rem; margin: 56px 0 8px; padding-top: 14px; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; line-height: 1.35; margin: 0 0 8px; }
p { max-width: 46rem; margin: 0 0 14px; }
.soft, figcaption { color: var(--soft); font-size: .875rem; line-height: 1.45; }
nav a { color: var(--accent); text-decoration: none; margin-right: 16px; white-space: nowrap; }
.facts { display: flex; flex-wrap: wrap; gap: 12px 32px; margin: 22px 0 8px; padding: 0; list-style: none; }
.facts b { display: block; font-size: 1.5rem; font-weight: 600; line-height: 1.25; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: .875rem; }
.side { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); gap: 32px 40px;
  align-items: start; margin: 20px 0; }
.side > * { min-width: 0; margin-top: 0; }
figure { margin: 0; break-inside: avoid; page-break-inside: avoid; }
img { display: block; width: 100%; max-width: 620px; height: auto; }
figcaption { margin-top: 6px; max-width: 620px; }
.table { margin: 20px 0; break-inside: avoid; page-break-inside: avoid; } .table .soft { margin: 0 0 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; border-bottom-color: #bbb; }
td.number, th.number { text-align: right; }
td.text { min-width: 15rem; white-space: normal; }
tr.strong td { font-weight: 600; }
details { margin: 16px 0; } summary { cursor: pointer; }
.errors { margin: 20px 0; padding: 0; list-style: none; }
.errors > li { padding: 14px 0; border-bottom: 1px solid var(--line); break-inside: avoid; page-break-inside: avoid; }
.errors { font-size: .9375rem; } .errors p { margin-bottom: 6px; max-width: 60rem; }
.wrong { color: var(--accent); }
.label { display: inline-block; margin: 0 14px 2px 0; }
@media (max-width: 520px) { body { padding: 16px 14px 40px; font-size: 15px; } h2 { margin-top: 40px; } }
@media print {
  @page { size: A4; margin: 14mm; }
  html { font-size: 11.5px; } body { max-width: none; padding: 0; font-size: 1rem; }
  table { font-size: 9.5px; } th, td { padding: 2px 7px 2px 0; } h2 { margin-top: 24px; }
  .side { grid-template-columns: 1fr 1fr; gap: 16px 20px; }
  h2, h3 { break-after: avoid; page-break-after: avoid; } nav, details { display: none; }
  .scroll { overflow: visible; }
}
"""


class Picture(NamedTuple):
    title: str  # what is found
    caption: str  # what is seen
    file: str
    content: bytes


class Section(NamedTuple):
    title: str
    body: str  # HTML

    @property
    def anchor(self) -> str:
        return "-".join(self.title.lower().split())


def page(title: str, subtitle: str, opening: str, sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{escape(s.anchor)}">{escape(s.title)}</a>' for s in sections)
    parts = "".join(f'<h2 id="{escape(s.anchor)}">{escape(s.title)}</h2>\n{s.body}\n' for s in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{escape(title)}</h1>\n<p class="soft">{escape(subtitle)}</p>\n{opening}\n<nav>{links}</nav>\n'
        f"{parts}</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_kind(kind)}>{escape(text)}</p>"


def picture(drawn: Picture) -> str:
    data = base64.b64encode(drawn.content).decode()
    alt = f"{drawn.title}. {drawn.caption}"
    return (
        f'<figure><h3>{escape(drawn.title)}</h3><img src="data:image/png;base64,{data}" alt="{escape(alt)}" '
        f'data-file="{escape(drawn.file)}"><figcaption>{escape(drawn.caption)}</figcaption></figure>'
    )


def side_by_side(parts: Iterable[str]) -> str:
    """Where there is room, else one below the other."""
    return f'<div class="side">{"".join(parts)}</div>'


def facts(values: Mapping[str, str]) -> str:
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for name, value in values.items())
    return f'<ul class="facts">{items}</ul>'


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str = "",
    text_columns: Sequence[int] = (0,),
    strong: Sequence[int] = (),
) -> str:
    """Figures to the right, but for the `text_columns`; `strong` are numbers of rows. It scrolls if too wide."""

    def cells(tag: str, values: Sequence[str]) -> str:
        kinds = ["" if place in text_columns else "number" for place in range(len(values))]
        kinds = ["text" if len(value) > 40 else kind for kind, value in zip(kinds, values, strict=True)]
        return "".join(
            f"<{tag}{_kind(kind)}>{escape(value)}</{tag}>" for kind, value in zip(kinds, values, strict=True)
        )

    head = f"<thead><tr>{cells('th', header)}</tr></thead>" if any(header) else ""
    body = "".join(
        f"<tr{_kind('strong' if number in strong else '')}>{cells('td', row)}</tr>" for number, row in enumerate(rows)
    )
    title = paragraph(caption, "soft") if caption else ""
    return f'<div class="table">{title}<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div></div>'


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _kind(kind: str) -> str:
    return f' class="{escape(kind)}"' if kind else ""
