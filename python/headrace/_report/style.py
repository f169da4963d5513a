# SPDX-License-Identifier: Apache-2.0
"""The style of the page: colours are variables, with other values where the reader's system is dark."""

STYLE = """
:root { color-scheme: light dark;
  --back: #fff; --card: #f6f7f9; --text: #1c2024; --soft: #60646c; --rule: #d9dce1;
  --blue: #0072b2; --orange: #c25400; --green: #00795a; --grey: #8b8f97; --mark: #fdf3e1; }
@media (prefers-color-scheme: dark) { :root {
  --back: #14171b; --card: #1d2126; --text: #e8eaed; --soft: #a2a8b1; --rule: #363c45;
  --blue: #56b4e9; --orange: #f0965a; --green: #40c79a; --grey: #7d848f; --mark: #33291a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 75rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: .95rem; margin: 0 0 .4rem; } p { margin: .3rem 0; }
.soft, figcaption small, th { color: var(--soft); font-weight: normal; }
.verdict { background: var(--mark); border-left: 4px solid var(--orange); padding: .7rem 1rem; margin: .8rem 0; }
.verdict strong { display: block; font-size: 1.2rem; }
.note { background: var(--card); border-left: 4px solid var(--grey); padding: .4rem 1rem; margin: .5rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .8rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem;
  align-items: start; }
figure { margin: 0; padding: .8rem; background: var(--card); border-radius: 6px; min-width: 0; }
.wide { grid-column: 1 / -1; }
figcaption { margin-bottom: .4rem; } figcaption small { display: block; }
.plot { display: grid; grid-template-columns: max-content 1fr; gap: .2rem .5rem; font-size: .75rem;
  color: var(--soft); }
.ys { display: flex; flex-direction: column; justify-content: space-between; text-align: right; line-height: 1; }
.xs { display: flex; justify-content: space-between; grid-column: 2; gap: .5rem; }
svg { display: block; width: 100%; height: 9rem; } .strip svg { height: 1rem; } .rank svg { height: 2.2rem; }
.strip, .rank { align-items: center; }
path { vector-effect: non-scaling-stroke; }
.grid { stroke: var(--rule); fill: none; } .line { fill: none; stroke-width: 1.5; } .band { opacity: .3; }
.line.a { stroke: var(--blue); } .band.a, .bar.a { fill: var(--blue); }
.line.b { stroke: var(--orange); } .band.b, .bar.b { fill: var(--orange); }
.line.c { stroke: var(--green); } .band.c, .bar.c { fill: var(--green); }
.key.a { color: var(--blue); } .key.b { color: var(--orange); } .key.c { color: var(--green); }
table { border-collapse: collapse; font-size: .85rem; width: 100%; } th, td { text-align: right; padding: .1rem .5rem; }
th:first-child, td:first-child { text-align: left; }
code, pre { font: .85rem/1.4 ui-monospace, monospace; } pre { white-space: pre-wrap; margin: .4rem 0; }
"""
