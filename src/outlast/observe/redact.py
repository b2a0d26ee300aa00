"""
No secret gets out: every text that leaves Outlast (events, logs, records, pages) passes through `sanitise`.

Known secret values are removed wherever they occur; beyond that, whatever looks like a credential is: values after words such as
*password* or *token*, passwords in URLs, Authorization headers, and the published shapes of common keys. When in doubt it masks.
"""

from __future__ import annotations

import re

MASK = "***"
LIMIT = 280  # characters an error text may have in an event or a record
_READ = 8_192  # a longer text is cut before it is searched, so that a megabyte of message costs nothing

_WORDS = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|api[-_ ]?key|apikey|access[-_ ]?key|secret[-_ ]?key|private[-_ ]?key|client[-_ ]?secret|"
    r"auth(?:orization|entication)?|credentials?|cookie|session(?:[-_ ]?id)?|sig(?:nature)?|x-amz-security-token|dsn|key"
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # -----BEGIN ... PRIVATE KEY----- blocks, also when cut short
    (re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    # scheme://user:password@host
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@'\"]*:[^\s/'\"]*@", re.IGNORECASE), rf"\1{MASK}@"),
    # Authorization: Bearer abc, Basic abc
    (re.compile(r"\b(bearer|basic|digest|negotiate)\s+(?!realm)[^\s'\",;]+", re.IGNORECASE), rf"\1 {MASK}"),
    # word = value, "word": "value", word: value, --word value
    (
        re.compile(
            rf"(?P<word>[\w.-]*(?<![a-z])(?:{_WORDS})(?:['\"]?\s*(?:=>|[=:])\s*|['\"]\s*,\s*))(?P<value>b?\"[^\"]*\"|b?'[^']*'|[^\s&,;)}}\]]+)",
            re.IGNORECASE,
        ),
        rf"\g<word>{MASK}",
    ),
    (re.compile(r"(--?[\w-]*(?:password|passwd|token|secret|api-?key))[ =]\S+", re.IGNORECASE), rf"\1 {MASK}"),
    # "password hunter2", "password is hunter2"
    (re.compile(r"\b(password|passphrase|passwd|secret|api key|token)(\s+(?:is|was|of)\s+|\s+)(['\"]?)(?!for\b|is\b|was\b|of\b|not\b|in\b|has\b|from\b|"
                r"expired\b|required\b|invalid\b|missing\b|authentication\b|provided\b|at\b|must\b|does\b|limit\b|count\b)[^\s'\"]+\3", re.IGNORECASE),
     rf"\1\2{MASK}"),
    # Published shapes of keys: OpenAI/Anthropic/Stripe, GitHub, GitLab, Slack, AWS, Google, Hugging Face, npm, PyPI, JWT
    (re.compile(r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{12,}\b"), MASK),
    (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|xox[abeoprs]-[\w-]{10,}|hf_[A-Za-z0-9]{16,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,})"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b|\bAIza[\w-]{20,}|\bya29\.[\w-]{10,}"), MASK),
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?"), MASK),
    # Anything long that mixes cases and digits the way no word does
    (re.compile(r"\b(?=[\w+/=-]*[a-z])(?=[\w+/=-]*[A-Z])(?=[\w+/=-]*\d)[A-Za-z0-9+/=_-]{32,}"), MASK),
    (re.compile(r"\b[0-9a-fA-F]{40,}\b"), MASK),
)  # fmt: skip
_secrets: dict[str, None] = {}


def remember_secret(value: str) -> None:
    """Remove this value from whatever goes out from now on. Values under 4 characters would mask half of every text and are ignored."""
    if len(value) >= 4:
        _secrets[value] = None


def mask(text: str) -> str:
    """The text without secrets, otherwise unchanged."""
    # Longest first: a secret may contain another.
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def sanitise(text: str, limit: int = LIMIT) -> str:
    r"""
    One line without secrets, at most `limit` characters.

    >>> sanitise("cannot open postgresql://shop:hunter2@db/shop\n  (password=hunter2)")
    'cannot open postgresql://***@db/shop (password=***)'
    """
    line = " ".join(mask(text[:_READ]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_text(error: BaseException) -> str:
    """What the exception says, sanitised; an exception whose text cannot be had is named instead."""
    try:
        return sanitise(str(error))
    except Exception:  # noqa: BLE001 - somebody else's __str__
        return f"<{type(error).__name__} has no readable text>"
