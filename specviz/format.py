"""Numbers as people read them: SI prefixes, three significant digits, '<0.001' rather than 0.000."""

from __future__ import annotations

import math

_PREFIXES = {-4: "p", -3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P", 6: "E"}


def si(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A value with an SI prefix: si(2.5e10, 'B/s') == '25.0 GB/s'. None and non-finite values: 'n/a'."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value == 0:
        return f"0 {unit}".rstrip()
    # round first, so that 999.9 becomes 1.00 k and never 1000
    rounded = float(f"{value:.{digits - 1}e}")
    power = min(max(math.floor(math.log10(abs(rounded)) / 3), min(_PREFIXES)), max(_PREFIXES))
    scaled = rounded / 1000.0**power
    places = max(0, digits - 1 - max(0, math.floor(math.log10(abs(scaled)))))
    return f"{scaled:.{places}f} {_PREFIXES[power]}{unit}".rstrip()


def number(value: float | None, digits: int = 3) -> str:
    """A plain number with significant digits, without exponents where they can be avoided."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return str(int(value))
    if abs(value) < 0.001:
        return "<0.001" if value > 0 else ">-0.001"
    if abs(value) >= 1e6:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")
    return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"


def percent(fraction: float | None) -> str:
    """A fraction as a percentage of two or three figures; small ones as '<0.1 %'."""
    if fraction is None or not math.isfinite(fraction):
        return "n/a"
    value = 100 * fraction
    if 0 < value < 0.1:
        return "<0.1 %"
    if (abs(value) < 10 and value != 0) or 99.5 <= value < 99.95:  # neither 0 nor 100 unless it is
        return f"{value:.1f} %"
    return f"{value:.0f} %"


def probability(value: float | None) -> str:
    """A probability with three decimals; neither 0 nor 1 unless it is: '<0.001', '>0.999'."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value in (0, 1):
        return str(int(value))
    if value < 0.001:
        return "<0.001"
    return ">0.999" if 0.999 < value < 1 else f"{value:.3f}"


def equals(value: float | None) -> str:
    """A number after its relation: '= 0.41', '< 0.001'; '(not recorded)' for None."""
    if value is None:
        return "(not recorded)"
    text = number(value)
    return f"{text[0]} {text[1:]}" if text[0] in "<>" else f"= {text}"


def seconds(value: float | None) -> str:
    """A duration: '12.3 ms', '4.56 s', '2 min 05 s'."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if value >= 60:
        return f"{int(value // 60)} min {int(value % 60):02d} s"
    return si(value, "s")


def binary_bytes(value: float | None) -> str:
    """Memory and file sizes in powers of 1024: '512 MiB'."""
    if value is None or not math.isfinite(value):
        return "n/a"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(value) >= 1024**power:
            return f"{value / 1024**power:.3g} {unit}"
    return f"{value:.0f} B"


def gigabytes(count: float) -> str:
    """Bytes in words: 93 MB, 8.05 GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
