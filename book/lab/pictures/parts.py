"""What the pictures of several chapters are made of."""

# mypy: ignore-errors
import matplotlib.pyplot as plt


def write(ax, x, y, text, **style):
    """Centre a text in (x, y)."""
    ax.text(x, y, text, ha="center", va="center", **style)


def write_cells(ax, rows, is_dark, text=str, **style):
    """Write each number of a table into its cell, in white where the cell is dark."""
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            write(ax, j, i, text(value), color="white" if is_dark(value) else "black", **style)


def note(ax, text, at, shift, **style):
    """A text beside the point `at`, `shift` printer's points away."""
    ax.annotate(text, at, shift, textcoords="offset points", **style)


def rectangle(ax, x, y, width, height, **style):
    """A rectangle whose lower left corner is (x, y)."""
    ax.add_patch(plt.Rectangle((x, y), width, height, **style))


def frame(ax, x, y, width, height, text, colour, **style):
    """A rectangle with a thin black edge and a text in its middle."""
    rectangle(ax, x, y, width, height, facecolor=colour, edgecolor="black", linewidth=0.8)
    write(ax, x + width / 2, y + height / 2, text, **style)


def point(ax, start, end, **style):
    """A thin arrow."""
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", **style})


def finish(ax, legend=None, **settings):
    """Show the figure: `settings` are of its axes, `legend` is the place of a legend."""
    ax.set(**settings)
    if legend:
        ax.legend(frameon=False, loc=legend)
    plt.show()
