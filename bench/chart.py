"""Draws the bars of docs/performance.md's tables as an SVG: how far each figure is on the right side of its bar.

usage: chart.py docs/performance.md > docs/performance.svg

A row counts when its second cell begins with a number and its last with ">=" or "<=" and a number. The length of a bar is figure / bar, or
bar / figure where less is better, on a logarithmic scale: right of the line a bar is met."""
import math
import re
import sys
from xml.sax.saxutils import escape

LINE, LEFT, WIDTH, ROW = 430, 12, 900, 17
DECADE = 150  # pixels


def rows(text):
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 3:
            continue
        figure, bar = re.match(r"([\d.,]+)", cells[1]), re.match(r"([<>]=) ([\d.,]+)", cells[-1])
        if not figure or not bar:
            continue
        number = lambda text: float(text.replace(",", "").rstrip("."))
        value, limit = number(figure.group(1)), number(bar.group(2))
        if value and limit:
            yield re.sub("`", "", cells[0]), cells[1].split(" (")[0], cells[-1], value / limit if bar.group(1) == ">=" else limit / value


def main():
    drawn = list(rows(open(sys.argv[1]).read()))
    height = ROW * len(drawn) + 40
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">')
    print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
    for times in (0.5, 1, 2, 5, 10, 30, 100):
        x = LINE + DECADE * math.log10(times)
        print(f'<line x1="{x:.0f}" y1="20" x2="{x:.0f}" y2="{height - 8}" stroke="{"black" if times == 1 else "#ddd"}"/>')
        print(f'<text x="{x:.0f}" y="14" text-anchor="middle">{"bar" if times == 1 else f"{times:g} x"}</text>')
    for i, (what, figure, bar, ratio) in enumerate(drawn):
        y = 24 + i * ROW
        length = DECADE * math.log10(ratio)
        x, width = (LINE, length) if length >= 0 else (LINE + length, -length)
        print(f'<rect x="{x:.1f}" y="{y}" width="{max(width, 1):.1f}" height="{ROW - 5}" fill="{"#2a7f62" if ratio >= 1 else "#c0392b"}"/>')
        label = what if len(what) <= 66 else what[:65] + "…"
        print(f'<text x="{LEFT}" y="{y + 10}">{escape(label)}</text>')
        print(f'<text x="{max(x + width, LINE) + 4:.0f}" y="{y + 10}" fill="#555">{escape(figure)} ({escape(bar)})</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
