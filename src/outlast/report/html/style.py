"""
How the page looks: one sheet for light and dark, for paper, and for any width. Colours keep their meaning for eyes that
see red and green alike.
"""

from __future__ import annotations

from outlast.display.html import PALETTE


def _colours(place: int) -> str:
    return ";".join(f"--{name}:{colours[place]}" for name, colours in PALETTE.items())


_SHEET = """
:root{color-scheme:light dark;
--bg:#faf9f6;--card:#fff;--ink:#1d2126;--soft:#5a626d;--line:#e4e1da;--well:#f1efe9;
LIGHT}
@media (prefers-color-scheme:dark){:root{
--bg:#131619;--card:#1a1e22;--ink:#eceae5;--soft:#a5adb8;--line:#2c3238;--well:#22272c;
DARK}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",
"Noto Sans","Liberation Sans",Arial,sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main{max-width:1120px;margin:0 auto;padding:clamp(20px,4vw,56px) clamp(16px,4vw,40px) 64px}
a{color:inherit}
h1,h2,h3,p,ol,ul,dl,dd,figure{margin:0;padding:0}
ol,ul{list-style:none}
h1{font-size:clamp(22px,3vw,32px);line-height:1.18;font-weight:640;letter-spacing:-.018em;max-width:27em;text-wrap:balance}
h2{font-size:18px;font-weight:640;letter-spacing:-.01em}
h3{font-size:15px;font-weight:600}
code,.mono{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
bdi{unicode-bidi:isolate}
.top{display:flex;flex-wrap:wrap;gap:4px 14px;align-items:baseline;color:var(--soft);font-size:14px;margin-bottom:18px}
.top b{color:var(--ink);font-weight:600}
.chip{display:inline-block;padding:1px 10px;border-radius:99px;border:1px solid currentColor;font-size:13px;font-weight:600;color:var(--soft)}
.chip.completed{color:var(--good)}.chip.failed{color:var(--bad)}
.why{color:var(--soft);max-width:52em;margin-top:10px}
.note{background:var(--well);border-left:3px solid var(--again);padding:10px 14px;border-radius:0 6px 6px 0;margin-top:18px;max-width:60em}
.note p+p{margin-top:6px}
svg{display:block;width:100%;overflow:visible}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;fill:var(--soft);paint-order:stroke;stroke:var(--bg);stroke-width:3px;stroke-linejoin:round}
.plot{display:flex}
.plot svg{flex:1;min-width:0}
.plot svg.scale{flex:none;width:58px}
.counts{margin-top:28px}
.legend{display:flex;flex-wrap:wrap;gap:6px 22px;margin-top:10px;font-size:14px;color:var(--soft)}
.legend b{color:var(--ink);font-weight:600}
.legend li{display:flex;gap:8px;align-items:baseline}
.key{flex:none;width:10px;height:10px;border-radius:3px;display:inline-block}
.tiles{display:flex;flex-wrap:wrap;gap:1px;background:var(--line);border:1px solid var(--line);
border-radius:10px;overflow:hidden;margin-top:28px}
.tiles div{flex:1 1 158px;background:var(--card);padding:12px 16px;display:flex;flex-direction:column}
.tiles dt{font-size:13px;color:var(--soft)}
.tiles dd{font-size:21px;overflow-wrap:normal;font-weight:620;letter-spacing:-.01em;line-height:1.3}
.tiles dd small{display:block;font-size:13px;font-weight:400;letter-spacing:0;color:var(--soft)}
section{margin-top:48px}
section>header{margin-bottom:16px}
section>header p{color:var(--soft);max-width:52em;margin-top:2px}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:0 48px}
.problems{border-top:1px solid var(--line)}
.problems>li{display:grid;grid-template-columns:88px minmax(0,1fr);gap:4px 20px;padding:16px 0;border-bottom:1px solid var(--line)}
.problems .n{font-size:24px;font-weight:620;line-height:1.2;letter-spacing:-.01em}
.problems .n small{display:block;font-size:13px;font-weight:400;color:var(--soft);letter-spacing:0}
.problems .msg{margin-top:2px}
.problems .meta{color:var(--soft);font-size:13.5px;margin-top:4px}
.cmds{display:flex;flex-wrap:wrap;gap:6px 10px;margin-top:10px}
.cmds code{background:var(--well);border:1px solid var(--line);border-radius:6px;padding:3px 9px;user-select:all}
.flow{display:flex;flex-wrap:wrap;gap:12px 0;align-items:stretch}
.flow>li{flex:1 1 190px;display:flex;min-width:0}
.flow>li.edge{flex:0 1 auto;min-width:118px}
.flow>li+li::before{content:"\\2192";align-self:center;flex:none;width:28px;text-align:center;color:var(--soft);font-size:17px}
.card{flex:1;min-width:0;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 14px}
.stack{flex:1;min-width:0;display:flex;flex-direction:column;justify-content:center;gap:12px}
.stack .card{flex:none}
.todo{display:flex;flex-wrap:wrap;gap:14px 28px;margin-top:24px;color:var(--soft);font-size:14px}
.todo .cmds{margin-top:4px}
.edge .card{background:transparent;border-style:dashed}
.edge .big small{display:block;line-height:1.2}
.card .tag{color:var(--soft);font-size:13px;font-weight:400}
.card .big{font-size:20px;overflow-wrap:normal;font-weight:620;letter-spacing:-.01em;line-height:1.4}
.card .big small{font-size:13px;font-weight:400;color:var(--soft);letter-spacing:0}
.card p.tag{min-height:1.5em}
.card svg{margin:8px 0}
.card ul{font-size:13.5px;color:var(--soft)}
.card ul b{color:var(--ink);font-weight:600}
figure{min-width:0}
figure+.scroll{margin-top:14px}
figcaption{font-size:13.5px;color:var(--soft);margin-bottom:8px}
.scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:500;color:var(--soft);font-size:13px;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);vertical-align:bottom}
td{padding:7px 14px 7px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:normal}
td.text,tbody th.text{overflow-wrap:anywhere;min-width:150px}
th.num,td.num{text-align:right;white-space:nowrap}
th:last-child,td:last-child{padding-right:0}
tbody th{color:var(--ink);font-size:14px;font-weight:500;vertical-align:top;overflow-wrap:normal;padding:7px 14px 7px 0}
thead th{white-space:nowrap;overflow-wrap:normal}
td.when{white-space:nowrap}
td.name,th.name{overflow-wrap:anywhere;min-width:84px}
td.bar{width:24%;min-width:64px;vertical-align:middle}
td small{color:var(--soft);font-size:13px}
details{margin-top:12px}
summary{cursor:pointer;color:var(--soft);font-size:13.5px;width:fit-content}
summary:hover{color:var(--ink)}
summary:focus-visible{outline:2px solid var(--ok);outline-offset:3px;border-radius:3px}
.quiet{color:var(--soft)}
footer{margin-top:56px;padding-top:14px;border-top:1px solid var(--line);color:var(--soft);font-size:13.5px}
.f-ok{fill:var(--ok);background:var(--ok)}.f-again{fill:var(--again);background:var(--again)}
.f-skip{fill:var(--skip);background:var(--skip)}.f-dead{fill:var(--dead);background:var(--dead)}
.f-rest{fill:var(--rest);background:var(--rest)}.f-limit{fill:var(--limit);background:var(--limit)}
.f-mark{fill:var(--mark);background:var(--mark)}.f-well{fill:var(--well)}
.f-card{fill:var(--card);stroke:var(--ok);stroke-width:2}
.grid{stroke:var(--line);stroke-width:1}.axis{stroke:var(--soft);stroke-width:1}
.s-ok{stroke:var(--ok);stroke-width:5;stroke-linecap:round}.s-thin{stroke:var(--ok);stroke-width:1.5}.s-dead{stroke:var(--dead);stroke-width:2}
@media (max-width:620px){
.problems>li{grid-template-columns:1fr}.problems .n small{display:inline;margin-left:8px}
.flow{flex-direction:column;gap:0}.flow>li,.flow>li.edge{flex:none;flex-direction:column}
.flow>li+li::before{content:"\\2193";width:auto;padding:2px 0}
.card p.tag{min-height:0}section{margin-top:40px}td.bar{display:none}th.bar{display:none}}
@media print{
:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#ccc;--well:#f3f3f3;LIGHT;color-scheme:light}
body{font-size:11pt;-webkit-print-color-adjust:exact;print-color-adjust:exact}
main{max-width:none;padding:0}section{margin-top:26px;break-inside:avoid-page}
details::details-content{display:block;content-visibility:visible}summary{display:none}.card,.problems>li,tr{break-inside:avoid}}
"""
SHEET = _SHEET.replace("LIGHT", _colours(0)).replace("DARK", _colours(1))
