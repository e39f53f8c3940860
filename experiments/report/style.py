"""The style of every page: one style sheet, light and dark, wide and narrow, on screen and on paper."""

__all__ = ["FAMILIES", "STYLE"]

FAMILIES = {
    "lbd": ("#c4561a", "#f0914f"),
    "tuned": ("#b02a63", "#f08bb4"),
    "loss": ("#0b7a85", "#5cc3cd"),
    "ahead": ("#8a6a12", "#d6b65c"),
    "concrete": ("#2d7a46", "#6cc48a"),
    "gaussian": ("#8a4fb0", "#c79be6"),
    "mc": ("#3569b0", "#7fabea"),
    "other": ("#777b84", "#a3a7b0"),
}
"""The colour of each family of methods, on light and on dark."""

_PAGE = {
    "paper": ("#fcfbf9", "#14161a"),
    "card": ("#ffffff", "#1b1e23"),
    "ink": ("#1f2127", "#e9e6e0"),
    "soft": ("#636873", "#a0a4ad"),
    "rule": ("#e3dfd7", "#32363d"),
    "good": ("#2d7a46", "#6cc48a"),
    "bad": ("#b3261e", "#f2857c"),
    "picture": ("0", "0.92"),
}
_COLOURS = _PAGE | {f"m-{name}": pair for name, pair in FAMILIES.items()}
_LIGHT, _DARK = ("".join(f" --{name}: {pair[side]};" for name, pair in _COLOURS.items()) for side in (0, 1))

# What the reader chose by the button is stronger than the system's setting; paper is always light.
_THEMES = f"""
:root {{ color-scheme: light;{_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark;{_DARK} }} }}
:root[data-theme="light"] {{ color-scheme: light;{_LIGHT} }}
:root[data-theme="dark"] {{ color-scheme: dark;{_DARK} }}
@media print {{ :root, :root[data-theme] {{ color-scheme: light;{_LIGHT} }} }}
"""

_TEXT = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 16px; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 2rem; line-height: 1.15; letter-spacing: -0.02em; margin: 0 0 12px; padding-right: 64px; }
h2 { font-size: 1.2rem; letter-spacing: -0.01em; margin: 0 0 14px; }
h3 { font-size: 1rem; margin: 26px 0 8px; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: 3px; }
header { position: relative; }
header p { max-width: 68ch; margin: 0 0 6px; color: var(--soft); }
.chapter { margin-top: 72px; padding-top: 28px; border-top: 3px solid var(--ink); }
.chapter h1 { font-size: 1.6rem; }
.chapter + section, header + section { margin-top: 32px; }
section { margin-top: 40px; padding-top: 22px; border-top: 1px solid var(--rule); }
section > p { max-width: 72ch; margin: 0 0 14px; }
.note { color: var(--soft); font-size: 0.875rem; margin: 12px 0 0; max-width: 76ch; }
.findings { max-width: 76ch; margin: 0 0 14px; padding-left: 1.15em; }
.findings li { margin: 3px 0; }
.findings:first-of-type > li:first-child { font-weight: 600; }
summary { cursor: pointer; color: var(--soft); font-size: 0.9rem; margin-bottom: 8px; width: fit-content; }
nav { display: flex; flex-wrap: wrap; gap: 2px 18px; margin-top: 18px; font-size: 0.9rem; }
nav a { color: var(--soft); text-decoration: none; padding: 3px 0; }
nav a:hover, nav a.top { color: var(--ink); }
nav a.top { font-weight: 600; flex-basis: 100%; margin-top: 8px; }
.theme { position: absolute; right: 0; top: 4px; }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit; }
.theme { border: 1px solid var(--rule); border-radius: 999px; padding: 3px 12px; font-size: 0.85rem; color: var(--soft);
  background: var(--card); }
.theme:hover { color: var(--ink); border-color: var(--soft); }
:focus-visible { outline: 2px solid var(--m-mc); outline-offset: 2px; border-radius: 3px; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 290px), 1fr)); gap: 0 28px; margin: 0;
  font-size: 0.875rem; }
.facts div { display: flex; gap: 16px; justify-content: space-between; padding: 5px 0;
  border-bottom: 1px solid var(--rule); min-width: 0; }
.facts dt { color: var(--soft); flex: none; max-width: 60%; }
.facts dd { margin: 0; text-align: right; overflow-wrap: anywhere; min-width: 0; }
"""

_TABLES = """
.scroll { overflow-x: auto; max-width: 100%; margin-bottom: 14px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; font-size: 0.9rem; }
th, td { padding: 7px 14px 7px 0; text-align: right; border-bottom: 1px solid var(--rule); font-weight: 400; }
td { white-space: nowrap; }
th:first-child, td.text, th.text { text-align: left; }
tbody th { position: sticky; left: 0; background: var(--paper); white-space: nowrap; }
thead th { color: var(--soft); font-size: 0.85rem; vertical-align: bottom; line-height: 1.3; }
th:last-child, td:last-child { padding-right: 0; }
thead button { color: inherit; }
thead button:hover { color: var(--ink); }
thead button::after { content: "↕"; margin-left: 4px; opacity: 0.35; font-size: 0.8em; }
th[aria-sort] { color: var(--ink); }
th[aria-sort="ascending"] button::after { content: "↑"; opacity: 1; }
th[aria-sort="descending"] button::after { content: "↓"; opacity: 1; }
.best { font-weight: 700; }
.chosen th, .chosen td { background: color-mix(in srgb, var(--m-mc) 12%, var(--paper)); }
.aside th, .aside td { color: var(--soft); font-style: italic; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 9px;
  background: currentColor; }
"""

_FIGURES = (
    "".join(f".m-{name} {{ color: var(--m-{name}); }} " for name in FAMILIES)
    + """
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 14px; }
.panels + .panels { margin-top: 14px; }
figure { margin: 0; }
.panels > figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px;
  min-width: 0; }
.panels > figure > figcaption { font-weight: 600; font-size: 0.9rem; margin-bottom: 6px; }
.panels ul, .panels ol { margin: 0; padding-left: 1.4em; font-size: 0.875rem; }
.panels img { display: block; width: 100%; height: auto; border-radius: 3px; }
.panels:not(.wide):has(> :only-child) { max-width: 560px; }
.wide { grid-template-columns: 1fr; }
figure svg { display: block; width: 100%; height: auto; max-width: 520px; margin: 0 auto; touch-action: pan-y; }
svg text { font-size: 12px; fill: var(--ink); font-variant-numeric: tabular-nums; }
svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); }
.axis { stroke: var(--soft); }
.diagonal { stroke: var(--soft); stroke-dasharray: 2 3; }
.start { stroke: var(--ink); stroke-dasharray: 4 4; }
.layer { stroke: var(--ink); stroke-width: 1.5; }
.ring { fill: none; stroke: currentColor; opacity: 0.65; }
.disc { fill: currentColor; }
.speck { fill: currentColor; fill-opacity: 0.6; }
.error { stroke: currentColor; stroke-width: 2; }
.bars { stroke: currentColor; stroke-width: 1.2; opacity: 0.7; }
.lead { stroke: currentColor; stroke-width: 0.8; opacity: 0.45; }
.here { stroke: currentColor; fill: var(--card); stroke-width: 2; }
.bar { fill: currentColor; opacity: 0.75; }
.drawn { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.curve { fill: none; stroke: currentColor; stroke-width: 1.5; opacity: 0.6; }
.bubble { fill: currentColor; fill-opacity: 0.75; }
.cursor { fill: none; stroke: var(--ink); stroke-width: 1.5; pointer-events: none; }
.focus [data-series]:not(.hot) { opacity: 0.15; }
.off { display: none; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 14px; padding: 0; list-style: none;
  font-size: 0.875rem; }
.legend li, .legend button { display: flex; align-items: center; gap: 7px; }
.legend svg { width: 30px; height: 10px; flex: none; }
.legend button[aria-pressed="false"] { opacity: 0.4; text-decoration: line-through; }
#tip { position: absolute; z-index: 9; left: 0; top: 0; max-width: min(280px, 86vw); padding: 5px 9px; border-radius: 6px;
  background: var(--ink); color: var(--paper); font-size: 0.8rem; line-height: 1.35; pointer-events: none;
  font-variant-numeric: tabular-nums; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); gap: 14px; }
.pictures figure { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px;
  text-align: center; min-width: 0; }
.pictures img { width: 96px; height: auto; max-width: 100%; image-rendering: pixelated; border-radius: 3px; }
.pictures.ink img { filter: invert(var(--picture)); }
.pictures figcaption { font-size: 0.85rem; line-height: 1.4; margin-top: 6px; color: var(--soft); }
.pictures b { font-weight: 600; color: var(--good); }
.pictures .wrong b { color: var(--bad); }
.sure { display: block; height: 4px; border-radius: 2px; margin: 6px 8px 2px; background: var(--rule); overflow: hidden; }
.sure i { display: block; height: 100%; background: var(--soft); }
.people { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 290px), 1fr)); gap: 14px; }
.people article { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px;
  font-size: 0.9rem; min-width: 0; }
.people h3 { font-size: 0.95rem; margin: 0 0 2px; }
.people h4 { font-size: 0.8rem; font-weight: 600; color: var(--soft); margin: 12px 0 4px; }
.people p { margin: 0; }
.people ol, .people ul { margin: 0; padding: 0; list-style: none; }
.people li { display: flex; justify-content: space-between; gap: 12px; padding: 2px 0; }
.people li > span:last-child:not(:first-child) { flex: none; color: var(--soft); font-variant-numeric: tabular-nums; }
.people .found { color: var(--good); font-weight: 600; }
"""
)

_NARROW = """
@media (max-width: 700px) {
  main { padding: 24px 16px 48px; }
  h1 { font-size: 1.6rem; }
  tbody th { white-space: normal; min-width: 9em; max-width: 42vw; padding-left: 19px; text-indent: -19px; }
  thead th:first-child { padding-left: 19px; }
  .pictures { grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 10px; }
  .pictures figure { padding: 10px 4px; }
  .pictures img { width: 72px; }
}
@media print {
  body { background: none; }
  main { max-width: none; padding: 0; }
  .theme, nav, #tip, thead button::after { display: none; }
  .scroll { overflow: visible; }
  table, thead th { font-size: 0.72rem; }
  tbody th { position: static; background: none; }
  figure, article, tr, h2, h3 { break-inside: avoid; }
  h1, h2, h3 { break-after: avoid; }
}
"""

STYLE = _THEMES + _TEXT + _TABLES + _FIGURES + _NARROW
