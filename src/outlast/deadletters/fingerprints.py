"""
Fingerprints: which failures are the same problem.

Messages of one problem differ in numbers and names. Without these, forty thousand failures are a handful of problems.
"""

from __future__ import annotations

import re
from hashlib import blake2b

_READ = 1_000  # characters of a message that tell problems apart

# An address without its port: numbers, or a name with a dot that is not that of a file with a line number.
_HOST = r"""(?: \d{1,3}+(?:\.\d{1,3}+){3} | \[[0-9a-fA-F:.]{2,45}+\] | localhost
    | (?:[A-Za-z0-9\-]{1,63}+\.){1,8}+(?!(?:py|pyx|js|ts|go|rs|rb|java|c|cc|cpp|h|sql|json|ya?ml|toml|csv|txt|log|html|xml|md):)[A-Za-z]{2,24}+ )"""

# The first alternative that fits a place wins. Nothing here can be made slow: every alternative either begins where no
# other match of its own can reach back to, or its repetitions never give back what they took.
_VARIES = re.compile(
    rf"""
      (?P<address> (?<![\w.:\-])(?:(?P<mark>['"]?){_HOST}:(?P<port>\d{{1,5}}+)(?P=mark) | (?P<quotes>['"]){_HOST}(?P=quotes),\ (?:port\ )?+(?P<second>\d{{1,5}}+)
               | [Pp]ort[\ =:]{{1,3}}+(?P<third>\d{{1,5}}+))(?![\w:]|\.\d) )
    | (?P<name>  (?<!\w)(?:[Cc]onstraint|[Cc]olumn|for\ key)\ (?P<quote>["'`])[A-Za-z_][\w.$]{{0,62}}+(?P=quote) )
    | (?P<url>   \b[A-Za-z][A-Za-z0-9+.\-]{{1,20}}+://[^\s'"<>)\]}}]++ )
    | (?P<email> (?<![\w.+\-])[\w.+\-]{{1,64}}+@[\w\-]{{1,63}}+(?:\.[\w\-]{{1,63}}+)++ )
    | (?P<time>  (?<!\d)\d{{4}}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d(?:[.,]\d++)?+)?+(?:\ ?(?:Z\b|UTC\b|[+\-]\d\d:?\d\d))?+)?+(?!\d)
               | (?<!\d)\d\d?:\d\d:\d\d(?:[.,]\d++)?+(?!\d) )
    | (?P<path>  (?<![\w/.~\\])(?:~|\.{{1,2}}+)?+/[\w.\-@+%=~:,]*+(?:/[\w.\-@+%=~:,]*+)*+
               | (?<![\w/.\-])[\w.\-]++(?:/[\w.\-]++){{2,}}+
               | (?<!\w)[A-Za-z]:\\[^\s'"<>|?*]*+ )
    | (?P<text>  (?<![\w\\])(?:[bBrRuUfF]{{1,2}})?+
                 (?:'(?:[^'\\]|\\.)*+(?:'|(?<=…)\Z)|"(?:[^"\\]|\\.)*+(?:"|(?<=…)\Z)|`[^`]*+`|\u201c[^\u201c\u201d]*+\u201d|\u2018[^\u2018\u2019]*+\u2019|\u00ab[^\u00ab\u00bb]*+\u00bb)(?!\w) )
    | (?P<n>     (?<![\w\-])[0-9a-fA-F]{{8}}-(?:[0-9a-fA-F]{{4}}-){{3}}[0-9a-fA-F]{{12}}(?![\w\-])
               | (?<![\w\-])(?=[A-Za-z_\-]*+\d)(?=[\d_\-]*+[A-Za-z])[\w\-]{{16,}}+(?![\w\-])
               | \b0[xX][0-9a-fA-F]++
               | (?<!\w)(?=[a-fA-F]*+\d)[0-9a-fA-F]{{8,}}+(?!\w)
               | \d++(?:[.,_]\d++)*+ )
    """,
    re.VERBOSE,
)

_KINDS = ("address", "name", "url", "email", "time", "path", "text", "n")
_URL_PORT = re.compile(r"[^:]++://(?:[^/?#@]*+@)?+(?:\[[^\]]*+\]|[^/?#:]*+):(\d{1,5}+)(?=[/?#]|\Z)")
_EPHEMERAL = 32_768  # from here on the system gives ports to connections and to servers that name none
_DIGITS = re.compile(r"\d++")
_KEY = re.compile(r"'[A-Za-z_]{1,40}'")


def normalised(message: str, *, read: int = _READ) -> str:
    """
    The message without what differs from item to item: numbers and ids, instants, paths, addresses and quoted text. The
    name of a constraint or a column stays: it says which rule was broken. So does the port of an address, which says which
    service, unless it is one that the system gives to each connection.

    >>> normalised("user 'ann' (id 4711) not found in /var/db/users.csv at 2026-11-15T09:30:00Z")
    'user <text> (id <n>) not found in <path> at <time>'
    >>> normalised('duplicate key value violates unique constraint "orders_pkey"')
    'duplicate key value violates unique constraint "orders_pkey"'
    >>> normalised("127.0.0.1:51742 -> 127.0.0.1:5432 refused")
    '<address> -> <address:5432> refused'
    """
    return " ".join(_VARIES.sub(_common, message[:read]).split())


def _common(found: re.Match[str]) -> str:
    kind = next(name for name in _KINDS if found[name] is not None)
    if kind == "name":  # partitions are numbered, and break the same rule
        return _DIGITS.sub("<n>", found[0])
    # Two ports are two services, but for those that the system gives to each connection.
    port = found["port"] or found["second"] or found["third"]
    if kind == "url":
        at = _URL_PORT.match(found[0])
        port = None if at is None else at[1]
    return f"<{kind}>" if port is None or int(port) >= _EPHEMERAL else f"<{kind}:{int(port)}>"


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
