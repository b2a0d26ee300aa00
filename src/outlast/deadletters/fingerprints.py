"""
Fingerprints: which failures are the same problem.

Messages of one problem differ in numbers and names. Without these, forty thousand failures are a handful of problems.
"""

from __future__ import annotations

import re
from hashlib import blake2b

_READ = 1_000  # characters of a message that tell problems apart

# The first alternative that fits a place wins. Nothing here can be made slow: every alternative either begins where no
# other match of its own can reach back to, or its repetitions never give back what they took.
_VARIES = re.compile(
    r"""
      (?P<name>  (?<!\w)(?:[Cc]onstraint|[Cc]olumn|for\ key)\ (?P<quote>["'`])[A-Za-z_][\w.$]{0,62}+(?P=quote) )
    | (?P<url>   \b[A-Za-z][A-Za-z0-9+.\-]{1,20}+://[^\s'"<>)\]}]++ )
    | (?P<email> (?<![\w.+\-])[\w.+\-]{1,64}+@[\w\-]{1,63}+(?:\.[\w\-]{1,63}+)++ )
    | (?P<time>  (?<!\d)\d{4}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d(?:[.,]\d++)?+)?+(?:\ ?(?:Z\b|UTC\b|[+\-]\d\d:?\d\d))?+)?+(?!\d)
               | (?<!\d)\d\d?:\d\d:\d\d(?:[.,]\d++)?+(?!\d) )
    | (?P<path>  (?<![\w/.~\\])(?:~|\.{1,2}+)?+/[\w.\-@+%=~:,]*+(?:/[\w.\-@+%=~:,]*+)*+
               | (?<![\w/.\-])[\w.\-]++(?:/[\w.\-]++){2,}+
               | (?<!\w)[A-Za-z]:\\[^\s'"<>|?*]*+ )
    | (?P<text>  (?<![\w\\])(?:[bBrRuUfF]{1,2})?+
                 (?:'(?:[^'\\]|\\.)*+(?:'|(?<=…)\Z)|"(?:[^"\\]|\\.)*+(?:"|(?<=…)\Z)|`[^`]*+`|\u201c[^\u201c\u201d]*+\u201d|\u2018[^\u2018\u2019]*+\u2019|\u00ab[^\u00ab\u00bb]*+\u00bb)(?!\w) )
    | (?P<n>     (?<![\w\-])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![\w\-])
               | (?<![\w\-])(?=[A-Za-z_\-]*+\d)(?=[\d_\-]*+[A-Za-z])[\w\-]{16,}+(?![\w\-])
               | \b0[xX][0-9a-fA-F]++
               | (?<!\w)(?=[a-fA-F]*+\d)[0-9a-fA-F]{8,}+(?!\w)
               | \d++(?:[.,_]\d++)*+ )
    """,
    re.VERBOSE,
)

_DIGITS = re.compile(r"\d++")
_KEY = re.compile(r"'[A-Za-z_]{1,40}'")


def normalised(message: str, *, read: int = _READ) -> str:
    """
    The message without what differs from item to item: numbers and ids, instants, paths, addresses and quoted text. The
    name of a constraint or a column stays: it says which rule was broken.

    >>> normalised("user 'ann' (id 4711) not found in /var/db/users.csv at 2026-11-15T09:30:00Z")
    'user <text> (id <n>) not found in <path> at <time>'
    >>> normalised('duplicate key value violates unique constraint "orders_pkey"')
    'duplicate key value violates unique constraint "orders_pkey"'
    """
    return " ".join(_VARIES.sub(_common, message[:read]).split())


def _common(found: re.Match[str]) -> str:
    # Partitions are numbered, and break the same rule.
    return _DIGITS.sub("<n>", found[0]) if found.lastgroup == "name" else f"<{found.lastgroup}>"


def fingerprint(stage: str, error_class: str, error_type: str, message: str) -> str:
    """
    The problem behind a failure, as 16 hexadecimal digits: failures with the same one are told as one group.

    >>> fingerprint("label", "timeout", "ReadTimeout", "no answer in 30 s") == fingerprint("label", "timeout", "ReadTimeout", "no answer in 5 s")
    True
    """
    # The key that is missing is the problem, if it is a name and not one of many ids.
    named = error_type == "KeyError" and _KEY.fullmatch(message) is not None
    parts = "\x1f".join((stage, error_class, error_type, message if named else normalised(message)))
    return blake2b(parts.encode(errors="replace"), digest_size=8).hexdigest()
