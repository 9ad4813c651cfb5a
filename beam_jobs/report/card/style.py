"""How the card looks: one style sheet, light or dark as the reader's system is, from a phone's width up."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fcfcfb; --ink: #1c1d20; --soft: #6a6d75; --line: #e4e4e0; --well: #f1f1ee; --bar: #4a78b0;
  --warn: #8a5a00; --warn-page: #fdf5e2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15161a; --ink: #e6e6e3; --soft: #9a9ca4; --line: #2d2f36; --well: #202228; --bar: #6f9fd8;
    --warn: #f0c674; --warn-page: #2b2519;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 3rem 1.25rem 4rem; max-width: 68rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
h1 { margin: 0; font-size: 2.1rem; line-height: 1.2; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h2 { margin: 3rem 0 0.75rem; font-size: 1.05rem; }
p { margin: 0.25rem 0 1rem; max-width: 52rem; }
.soft, .gap, caption { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: 1.25rem 3rem; margin: 1.75rem 0 0; }
.facts div { min-width: 5rem; }
.facts dt { color: var(--soft); font-size: 0.85rem; }
.facts dd { margin: 0; font-size: 1.3rem; }
.warning {
  margin-top: 2rem; padding: 0.75rem 1rem; border-radius: 8px; background: var(--warn-page); color: var(--warn);
}
.wide { overflow-x: auto; }
.fit table { width: auto; min-width: min(100%, 26rem); }
table { width: 100%; border-collapse: collapse; }
th, td { padding: 0.32rem 1.75rem 0.32rem 0; text-align: left; vertical-align: middle; }
th {
  color: var(--soft); font-size: 0.85rem; font-weight: 500; border-bottom: 1px solid var(--line); white-space: nowrap;
}
td { overflow-wrap: break-word; }
.name, .file { overflow-wrap: anywhere; }
tbody tr + tr td { border-top: 1px solid var(--line); }
th:last-child, td:last-child { padding-right: 0; }
.n { text-align: right; white-space: nowrap; }
.name { min-width: 6rem; }
.file { width: max-content; max-width: min(28rem, 56vw); }
.digest { display: block; min-width: 18rem; }
.bar { display: block; width: 100%; min-width: 3rem; height: 10px; border-radius: 2px; }
.bar rect, .profile path { fill: var(--bar); }
.bars td { border: 0 !important; padding-top: 0.16rem; padding-bottom: 0.16rem; line-height: 1.35; }
.bars td:first-child:not(.gap) { width: 1%; white-space: nowrap; }
.bars td:has(.bar) { width: 34%; padding-right: 0.75rem; }
.one td:has(.bar) { width: 60%; }
.profile { display: block; width: 100%; height: 96px; margin: 0.5rem 0 0.25rem; border-bottom: 1px solid var(--line); }
.classes { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: 1.6rem 3rem; }
figure { margin: 0; min-width: 0; }
figcaption { display: flex; gap: 0.75rem; margin-bottom: 0.4rem; }
figcaption b { font-weight: 500; overflow-wrap: anywhere; }
.strip { display: grid; grid-template-columns: repeat(5, minmax(0, var(--cell, 1fr))); gap: 0.25rem; }
.strip img {
  display: block; width: 100%; height: auto; aspect-ratio: 1; object-fit: contain; background: var(--well);
  border-radius: 3px; image-orientation: none;
}
.strip .tiny { image-rendering: pixelated; }
code, pre { font: 0.88em/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
code { overflow-wrap: anywhere; }
pre code { font-size: inherit; }
pre { margin: 0; padding: 0.9rem 1.1rem; border-radius: 8px; background: var(--well); white-space: pre-wrap; }
pre, pre code { overflow-wrap: anywhere; }
pre code { font-size: inherit; }
.flag { white-space: nowrap; }
summary { cursor: pointer; margin-bottom: 0.5rem; }
footer {
  margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); color: var(--soft); font-size: 0.85rem;
}
@media (max-width: 40rem) {
  body { padding: 2rem 1rem 3rem; }
  .facts { gap: 1rem 2rem; }
  th, td { padding-right: 1rem; }
  .bars td:has(.bar) { width: 24%; padding-right: 0.5rem; }
  .one td:has(.bar) { width: 45%; }
}
"""
