"""What crash tests measured, printed at the end of the run: a limit that passes says too little."""

from typing import Final

lines: Final[list[str]] = []


def tell(what: str, value: float | int | str) -> None:
    shown = f"{value:.2f} s" if isinstance(value, float) else str(value)
    lines.append(f"{what:<64} {shown}")
