"""The look of the page: one style sheet, light and dark, wide and narrow."""

__all__ = ["STYLE"]

STYLE = """
:root { --paper: #fcfbf9; --card: #fff; --ink: #1f2127; --soft: #636873; --rule: #e3dfd7;
  --none: #878b94; --fixed: #3569b0; --learned: #c4561a; --good: #2d7a46; --bad: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14161a; --card: #1b1e23; --ink: #e9e6e0; --soft: #a0a4ad; --rule: #32363d;
    --none: #989ca5; --fixed: #7fabea; --learned: #f0914f; --good: #6cc48a; --bad: #f2857c; }
  .digits img { filter: invert(0.92); }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 2rem; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 12px; }
h2 { font-size: 1.2rem; letter-spacing: -0.01em; margin: 0 0 14px; }
header p { max-width: 68ch; margin: 0; color: var(--soft); }
section { margin-top: 40px; padding-top: 22px; border-top: 1px solid var(--rule); }
section > p { max-width: 72ch; margin: 0 0 14px; }
.note { color: var(--soft); font-size: 0.875rem; margin: 12px 0 0; }
.findings { max-width: 76ch; margin: 0 0 22px; padding-left: 1.15em; }
.findings li { margin: 3px 0; }
.findings li:first-child { font-weight: 600; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.cards { width: 100%; }
th, td { padding: 7px 14px 7px 0; text-align: right; border-bottom: 1px solid var(--rule); font-weight: 400; }
th:first-child { text-align: left; white-space: nowrap; }
td { white-space: nowrap; }
thead th { color: var(--soft); font-size: 0.875rem; }
th:last-child, td:last-child { padding-right: 0; }
.best { font-weight: 700; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 9px;
  background: var(--none); }
.swatch.fixed { background: var(--fixed); }
.swatch.learned { background: var(--learned); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 14px; }
figure { margin: 0; }
.panels figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px; }
.panels figcaption { font-weight: 600; font-size: 0.9rem; margin-bottom: 6px; }
svg { display: block; width: 100%; height: auto; max-width: 420px; margin: 0 auto; }
svg text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--soft); }
.diagonal { stroke: var(--soft); stroke-dasharray: 2 3; }
.start { stroke: var(--ink); stroke-dasharray: 4 4; }
.layer { stroke: var(--ink); stroke-width: 1.5; }
.ring { fill: none; stroke: currentColor; opacity: 0.65; }
.disc { fill: currentColor; }
.error { stroke: currentColor; stroke-width: 2; }
.bar { fill: currentColor; opacity: 0.75; }
.curve { fill: none; stroke: currentColor; stroke-width: 1.5; opacity: 0.6; }
.bubble { fill: currentColor; fill-opacity: 0.75; }
svg .none { color: var(--none); }
svg .fixed { color: var(--fixed); }
svg .learned { color: var(--learned); }
.digits { display: grid; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); gap: 14px; }
.digits figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px;
  text-align: center; }
.digits img { width: 96px; height: 96px; image-rendering: pixelated; border-radius: 3px; }
.digits figcaption { font-size: 0.85rem; line-height: 1.4; margin-top: 6px; color: var(--soft); }
.digits b { font-weight: 600; color: var(--good); white-space: nowrap; }
.digits .wrong b { color: var(--bad); }
.plain { margin-bottom: 22px; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); gap: 0 28px; margin: 0;
  font-size: 0.875rem; }
.facts div { display: flex; gap: 16px; justify-content: space-between; padding: 5px 0;
  border-bottom: 1px solid var(--rule); }
.facts dt { color: var(--soft); flex: none; }
.facts dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
@media (max-width: 700px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 1.6rem; }
  .cards, .cards tbody, .cards tr, .cards th, .cards td { display: block; }
  .cards thead { display: none; }
  .cards tr { padding: 10px 0; border-bottom: 1px solid var(--rule); }
  .cards th, .cards td { border: 0; padding: 1px 0; }
  .cards th { font-weight: 600; }
  .cards td { display: flex; justify-content: space-between; }
  .cards td::before { content: attr(data-label); color: var(--soft); font-weight: 400; }
  .digits { grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 10px; }
  .digits figure { padding: 10px 4px; }
  .digits img { width: 72px; height: 72px; }
}
"""
