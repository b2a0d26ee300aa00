"""
Numbers, shares and times for a person's eye: one way to say them, wherever they are shown.
"""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """
    A number with its noun.

    >>> counted(1, "dead letter"), counted(12345, "dead letter"), counted(2, "retry", "retries")
    ('1 dead letter', '12,345 dead letters', '2 retries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def progress_text(done: float, total: float | None, note: str) -> str:
    """
    How far something is.

    >>> progress_text(3, 10, "pages"), progress_text(1234567, None, ""), progress_text(0.25, 1.5, "")
    ('3 of 10, pages', '1,234,567', '0.25 of 1.5')
    """
    numbers = [f"{number:,.2f}".rstrip("0").rstrip(".") for number in (done, total) if number is not None]
    return " of ".join(numbers) + (f", {note}" if note else "")


def numeral(number: float) -> str:
    """
    A number as it is, with nothing rounded off.

    >>> [numeral(one) for one in (1234567, 1234567.0, 0.1, -2.50, 1e21, 12345678.25)]
    ['1234567', '1234567', '0.1', '-2.5', '1000000000000000000000', '12345678.25']
    """
    return str(int(number)) if number == number // 1 and abs(number) < 1e300 else repr(number)


def ended(text: str) -> str:
    """
    A text as the end of a sentence.

    >>> ended("no such module"), ended("It is gone."), ended("Did you mean 'x'?")
    ('no such module.', 'It is gone.', "Did you mean 'x'?")
    """
    return text if text.endswith((".", "?", "!")) else f"{text}."


def process_of(owner: str) -> str:
    """
    The owner of a lease: the name that a process has wherever a person reads of it. A lease that was given back has
    none.

    >>> process_of("vm/4026531836:17620:5201017:1"), process_of("")
    ('vm, process 17620', 'one that has ended')
    """
    if not owner:
        return "one that has ended"
    host, _, rest = owner.partition(":")
    pid = rest.partition(":")[0]
    return f"{host.partition('/')[0]}, process {pid}" if pid else owner


def window(seconds: float) -> str:
    """
    A stretch of time that somebody asked for, as people ask for it: in hours up to two days, and in days if they are whole.

    >>> [window(s) for s in (86_400, 7_200, 604_800, 172_800, 90_000, 5_400)]
    ['24 h', '2 h', '7 d', '48 h', '25 h', '1 h 30 min']
    """
    if not seconds % 86_400 and seconds > 2 * 86_400:
        return f"{seconds / 86_400:,.0f} d"
    return f"{seconds / 3600:,.0f} h" if seconds and not seconds % 3600 else duration(seconds)


def duration(seconds: float) -> str:
    """
    Time for a person's eye.

    >>> [duration(s) for s in (0.0123, 0.5, 8.2, 75, 3_725, 200_000)]
    ['12 ms', '0.5 s', '8.2 s', '1 min 15 s', '1 h 02 min', '2 d 7 h']
    """
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds < 10 else f"{seconds:.0f} s"
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if days:
        return f"{days:,} d {hours % 24} h"
    return f"{hours} h {minutes % 60:02} min" if hours else f"{minutes} min {whole % 60:02} s"


def whole(seconds: float) -> str:
    """
    Time in whole seconds, for what changes while it is read.

    >>> whole(0.2), whole(8.4), whole(75.5)
    ('1 s', '8 s', '1 min 16 s')
    """
    return duration(max(1, round(seconds)))


def per_second(rate: float) -> str:
    """
    A rate for a person's eye.

    >>> [per_second(r) for r in (12_345.6, 12.34, 0.5, 0.01, 0)]
    ['12,346 items/s', '12 items/s', '0.5 items/s', '36 items/h', '0 items/s']
    """
    if 0 < rate < 0.1:
        return f"{rate * 3600:.0f} items/h"
    return f"{rate:,.0f} items/s" if rate >= 10 or rate == 0 else f"{rate:.2g} items/s"


def percent(part: int, whole: int) -> str:
    """
    A share; never 100 % while something is missing, nor 0 % of something.

    >>> percent(999_999, 1_000_000), percent(1, 1_000_000), percent(2, 2), percent(0, 0)
    ('99.9 %', '0.1 %', '100 %', '0 %')
    """
    if not whole or not part:
        return "0 %"
    if part == whole:
        return "100 %"
    share = min(99.9, max(0.1, 100 * part / whole))
    return f"{share:.0f} %" if 1 <= share <= 99 else f"{share:.1f} %"


def precise(seconds: float) -> str:
    """
    Time as `duration` says it, with more digits for what is short.

    >>> [precise(s) for s in (0, 0.000_404, 0.002_98, 0.0162, 0.1625, 5.1)]
    ['0', '404 µs', '2.98 ms', '16.2 ms', '162 ms', '5.1 s']
    """
    if seconds <= 0:
        return "0"
    if seconds < 0.000_999_5:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else duration(seconds)


def amount(number: float) -> str:
    """
    What was spent, with as many digits as a person reads.

    >>> amount(792_044_000.0), amount(1980.11), amount(0.002), amount(0), amount(3e15), amount(2.94384e-05)
    ('792,044,000', '1,980.11', '0.002', '0', '3e+15', '0.0000294')
    """
    if 1e-12 < abs(number) < 1e-3:
        from decimal import Decimal

        return f"{Decimal(f'{number:.3g}'):f}"
    if abs(number) >= 1e12:
        return f"{number:.4g}"
    return f"{number:,.0f}" if abs(number) >= 100_000 or number == int(number) else f"{number:,.6g}"
