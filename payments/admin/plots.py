"""Drawings as SVG, made here: no script, no style attribute, readable light and dark, wide and narrow.

The drawing stretches with the page, so all words stand outside of it, as text. Colours are classes in admin.css.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from payments.admin import cells

WIDTH: Final = 1000  # of the drawing's own coordinates
HEIGHT: Final = 200
COLUMNS_MAX: Final = 250  # of a curve: more can't be told apart on any screen


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: the parts {class: count} stacked upon each other, each a link to what it counts."""

    label: str
    parts: Sequence[tuple[str, int, str, str]]  # class, count, title, url

    @property
    def total(self) -> int:
        return sum(count for _name, count, _title, _url in self.parts)


def bars(drawn: Sequence[Bar], *, label: str, legend: Sequence[tuple[str, str]], top: str) -> SafeString:
    """Return stacked bars. top: what the full height stands for, in words. legend: (class, words)."""
    highest = max((bar.total for bar in drawn), default=0) or 1
    slot = WIDTH / max(1, len(drawn))
    shapes: list[SafeString] = []
    for position, bar in enumerate(drawn):
        base = float(HEIGHT)
        for name, count, title, url in bar.parts:
            # What happened at all is seen, be it one in a million.
            height = max(3.0, HEIGHT * count / highest) if count else 0.0
            base -= height
            if count:
                shapes.append(_bar(name, position * slot + slot * 0.1, base, slot * 0.8, height, title, url))
    return _figure(
        format_html_join("", "{}", ((shape,) for shape in shapes)),
        label=label,
        top=top,
        axis=[bar.label for bar in drawn[:: max(1, len(drawn) // 6)]],
        axis_class="axis even",
        legend=legend,
    )


def _bar(name: str, x: float, y: float, width: float, height: float, title: str, url: str) -> SafeString:
    return format_html(
        '<a href="{}"><rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect></a>',
        *(url, name, f"{x:.1f}", f"{max(0.0, y):.1f}", f"{width:.1f}", f"{height:.1f}", title),
    )


def curve(points: Sequence[tuple[datetime, int]], *, label: str, top: str, bottom: str) -> SafeString:
    """Return a step curve of (time, value), the oldest first, and the line of zero where it lies within."""
    first, last = points[0][0], points[-1][0]
    seconds = (last - first).total_seconds() or 1.0
    values = [value for _at, value in points]
    low, high = min(values), max(values)
    span = (high - low) or 1

    def y_of(value: int) -> float:
        return HEIGHT - HEIGHT * (value - low) / span

    columns = groupby(points, lambda point: int(COLUMNS_MAX * (point[0] - first).total_seconds() / seconds))
    drawn: list[str] = []
    value = values[0]
    for column, group in columns:
        inside = [held for _at, held in group]
        # It stays as it was until this column; of what the column holds: how high, how low, and where it ended.
        steps = [value, *dict.fromkeys((max(inside), min(inside), inside[-1])), inside[-1]]
        drawn += [f"{WIDTH * column / COLUMNS_MAX:.1f},{y_of(step):.1f}" for step in steps]
        value = inside[-1]
    shapes = format_html('<polyline class="curve" points="{}"/>', " ".join(drawn))
    if low < 0 < high:
        shapes += format_html('<line class="zero" x1="0" x2="{}" y1="{}" y2="{}"/>', WIDTH, *[f"{y_of(0):.1f}"] * 2)
    axis = [cells.moment(first), cells.moment(last)]
    return _figure(shapes, label=label, top=top, bottom=bottom, axis=axis)


def _figure(
    shapes: SafeString,
    *,
    label: str,
    top: str,
    axis: Sequence[str],
    bottom: str = "",
    legend: Sequence[tuple[str, str]] = (),
    axis_class: str = "axis",
) -> SafeString:
    return format_html(
        '<figure class="plot"><p class="top">{} {}</p>'
        '<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
        '{}<p class="{}">{}</p></figure>',
        top,
        format_html_join(" ", '<span class="key {}">{}</span>', legend),
        WIDTH,
        HEIGHT,
        label,
        shapes,
        format_html('<p class="bottom">{}</p>', bottom) if bottom else "",
        axis_class,
        format_html_join("", "<span>{}</span>", ((one,) for one in axis)),
    )
