"""Draw plots in the terminal."""

from collections.abc import Sequence


def line_plot(
    xs: Sequence[float],
    ys: Sequence[float],
    *,
    title: str,
    x_label: str,
    width: int,
    height: int = 12,
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> str:
    """Draw a curve in braille points, `width` x `height` characters, without colours. The y axis starts at 0."""
    import plotext

    top = max(ys, default=0) or 1.0
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.title(title)
    figure.label(x_label)
    vertical = figure.ruler("y")
    vertical.lim(0, top)
    marks = [top * part / 4 for part in range(5)]
    vertical.ticks(marks, [short_number(mark) for mark in marks])
    if x_ticks is not None:
        figure.ruler("x").ticks([at for at, _ in x_ticks], [name for _, name in x_ticks])
    figure.draw(figure.signal(list(xs), list(ys), marker="braille").lines())
    return str(plotext.uncolorize(str(figure.build()))).rstrip("\n")


def short_number(number: float) -> str:
    """Return the number with three significant digits and a unit: 1234567 -> 1.23M."""
    for unit in ("", "k", "M", "G"):
        text = f"{number:.3g}"
        if float(text) < 1000:  # the rounded number: 999,999 is 1M, not 1000k
            return f"{text}{unit}"
        number /= 1000
    return f"{number:.0f}T" if number >= 100 else f"{number:.3g}T"
