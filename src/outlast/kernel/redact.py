"""
No secret gets out, and nothing that a terminal would obey: every text that leaves Outlast (events, logs, records,
complaints) passes through here.

Known secret values are removed however they are written. Beyond that, what looks like a credential is: a password in a
URL, the value after a telling word (``password=``, ``"apiKey":``, ``Authorization:``), the published shapes of common
keys, long random strings. When in doubt it masks. Every step reads the text once: a hostile message must not stall the
call that failed with it.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MASK = "***"
LIMIT = 280  # characters an error text may have in an event or a record
_READ = 8_192  # a longer text is cut before it is searched

_secrets: dict[str, None] = {}
_variables: dict[str, str] = {}  # environment variables that hold secrets, with the value that was seen last
_longest = 0


def remember_secret(value: str) -> None:
    """
    Remove this value from whatever goes out from now on. Values under 4 characters would mask half of every text and
    are ignored.
    """
    global _longest  # noqa: PLW0603 - grows with what is remembered
    for spelling in {spelling for one in (value, *passwords_in(value)) for spelling in _spellings(one)}:
        if len(spelling) >= 4:
            _secrets[spelling] = None
            _longest = max(_longest, len(spelling))


def passwords_in(value: str) -> tuple[str, ...]:
    """
    Of an address that is a secret as a whole, what is one by itself, too: as it stands there, and as it is meant.

    >>> passwords_in("postgresql://ann:hunter%2B2@db/shop"), passwords_in("host=db password=hunter2")
    (('hunter%2B2', 'hunter+2'), ('hunter2',))
    """
    from urllib.parse import unquote

    found = tuple(one for groups in _LOGINS.findall(value) for one in groups if one)
    return tuple(dict.fromkeys((*found, *map(unquote, found))))


def _spellings(value: str) -> set[str]:
    """A value as others write it: in a text, in a text in a text, in an address, in a header."""
    import json
    from urllib.parse import quote, quote_plus

    found = {value}
    for _ in range(2):
        found |= {
            spelling
            for one in found
            for spelling in (
                repr(one)[1:-1],
                repr(f"{one}'\"")[1:-4],  # in a text that has both kinds of quotes
                json.dumps(one)[1:-1],
                json.dumps(one, ensure_ascii=False)[1:-1],
            )
        }
    found |= {quote(value, errors="replace"), quote(value, safe="", errors="replace")}
    found |= {quote_plus(value, errors="replace"), repr(value.encode(errors="replace"))[2:-1], " ".join(value.split())}
    return found | _in_base64(value)


def _in_base64(value: str) -> set[str]:
    """
    What is to be seen of a value in Base64, whatever stands before and behind it: of ``user:password`` in a header, the
    password.
    """
    from base64 import b64encode

    data = value.encode(errors="replace")
    found = {b64encode(data).decode()} if len(data) >= 4 else set[str]()
    for before in range(3 if len(data) >= 6 else 0):  # bytes of the last group of three before it
        whole = b64encode(bytes(before) + data).decode()
        found.add(whole[(0, 2, 3)[before] : (before + len(data)) * 8 // 6])
    return found | {one.replace("+", "-").replace("/", "_") for one in found}


def remember_variable(name: str) -> None:
    """Remove what this environment variable holds, also if it is set or changed later."""
    _variables.setdefault(name, "")


def sanitise(text: str, limit: int = LIMIT) -> str:
    r"""
    One line without secrets, at most `limit` characters.

    >>> sanitise("cannot open postgresql://shop:hunter2@db/shop\n  (password=hunter2)")
    'cannot open postgresql://***@db/shop (password=***)'
    """
    text = _cut(text)
    if not text.isprintable():
        # Before secrets are looked for: what cannot be seen must not hide them. After known ones: they may hold
        # anything.
        text = harmless(_UNSEEN.sub("", _BREAKS.sub(" ", _SEQUENCES.sub("", mask_known(text)))))
    line = " ".join(mask(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def error_text(error: BaseException) -> str:
    """What the exception says, sanitised; an exception whose text cannot be had is named instead."""
    try:
        return sanitise(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - somebody else's __str__ may do anything, sys.exit too
        return f"<{type(error).__name__} has no readable text>"


# -- what a terminal obeys -----------------------------------------------------------------------------------------------

# What a terminal takes for a command: a control sequence (colour, cursor, screen), a string for it (title, link,
# clipboard), other escapes. A string without an end is none: it must not take the rest of a message along.
_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}+[ -/]{0,8}+[@-~]"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]{0,2048}+(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]{0,4}+[0-~]"
)
_BREAKS = re.compile("[\t-\r\x1c-\x1f\x85\u2028\u2029]")
# Of no width, or turning the direction of reading. Not the two joiners: writing and emoji need them.
_UNSEEN = re.compile(
    "[\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_KEPT = frozenset(
    "\u200c\u200d\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
# Control characters, and halves of a surrogate pair: those cannot be written anywhere, not to a log file, not to a
# database.
_OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def plain(text: str) -> str:
    r"""
    A name or a key from outside for one line of a terminal: nothing in it moves the cursor, colours, rings, is unseen
    or turns the direction of writing.

    >>> plain("two\nlines"), plain("\x1b[2Jgone"), plain("日本")
    ('two lines', '\ufffd[2Jgone', '日本')
    """
    return harmless(" ".join(text.split()))


def harmless(text: str, *, lines: bool = False) -> str:
    """As `plain`, with spaces as they are: for a whole line that is laid out already. With `lines`, several of them."""
    if text.isprintable():
        return text
    if lines:
        return "\n".join(map(harmless, text.replace("\t", "    ").split("\n")))
    text = _BREAKS.sub(" ", text)
    return "".join(each if each.isprintable() or each in _KEPT else "\ufffd" for each in text)


def in_json(text: str) -> str:
    r"""
    A JSON document with all of that spelt as escapes: it means the same, and no terminal obeys it.

    >>> in_json('["\u202e", "\x9b"]')
    '["\\u202e", "\\u009b"]'
    """
    if text.isprintable():
        return text
    return _IN_JSON.sub(lambda odd: "".join(f"\\u{unit:04x}" for unit in _units(odd[0])), text)


def to_json(value: Any, *, indent: int | None = None, default: Any = str) -> str:
    """
    A value as a JSON document that every reader takes and no terminal obeys. JSON knows no NaN and no Infinity: they
    are told as texts.

    >>> to_json({"rate": float("nan"), "left": [float("-inf"), 1.5]})
    '{"rate": "NaN", "left": ["-Infinity", 1.5]}'
    """
    import json

    def told(value: Any, *, strictly: bool) -> str:
        return json.dumps(value, indent=indent, default=default, ensure_ascii=False, allow_nan=not strictly)

    try:
        text = told(value, strictly=True)
    except ValueError:
        text = told(json.loads(told(value, strictly=False), parse_constant=str), strictly=True)
    return in_json(text)


_IN_JSON = re.compile(f"(?![\t\n\r])(?:{_OBEYED.pattern}|{_UNSEEN.pattern}|[\u2028\u2029])")


def _units(character: str) -> tuple[int, ...]:
    code = ord(character)
    return (code,) if code < 0x10000 else (0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF))


# -- secrets ------------------------------------------------------------------------------------------------------------------


def mask(text: str) -> str:
    """The text without secrets, otherwise unchanged."""
    return mask_likely(mask_known(text))


def mask_likely(text: str) -> str:
    """Without what looks like a secret, whatever this process knows: the same for the same text, everywhere."""
    for step in (
        _mask_private_keys,
        _mask_urls,
        _mask_parameters,
        _mask_pairs,
        _mask_tags,
        _mask_phrases,
        _mask_shapes,
    ):
        text = step(text)
    return text


def masked(value: Any, depth: int = 0) -> Any:
    """
    Data without secrets: still what JSON can say, whatever was taken out of it.

    >>> masked({"user": "ann", "password": "hunter2", "list": [{"token": 5}, "fine"]})
    {'user': 'ann', 'password': '***', 'list': [{'token': '***'}, 'fine']}
    """
    import json

    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
        value = json.loads(text)
        hidden = mask(text)
    except (RecursionError, ValueError):
        return _DEEP
    if hidden == text:
        return value
    if isinstance(value, str):
        return mask(value) if mask(value) != value else MASK
    with_mask = _parsed(hidden)
    if with_mask is not None:
        return with_mask
    if depth >= _MOST_DEPTH:
        return MASK
    if isinstance(value, dict):
        return {mask(name): _masked_member(name, inner, depth) for name, inner in value.items()}
    if isinstance(value, list):
        inside = [masked(inner, depth + 1) for inner in value]
        return inside if inside != value else MASK  # what gives it away is how they follow each other
    return MASK


_DEEP = "<nested too deeply to be shown>"
_MOST_DEPTH = 40


def _masked_member(name: str, value: Any, depth: int) -> Any:
    import json

    found = _parsed(mask(json.dumps({name: value}, ensure_ascii=False)))
    if isinstance(found, dict) and len(found) == 1:
        return next(iter(found.values()))
    return masked(value, depth + 1) if isinstance(value, dict | list) and not _telling(name) else MASK


def _parsed(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return None


def _cut(text: str) -> str:
    if len(text) <= _READ:
        return text
    # What is cut may be the end of a secret: known ones are removed first, and the last word goes with the rest.
    head = mask_known(text[: _READ + _longest])[:_READ]
    kept = head[:-512] + head[-512:].rpartition(" ")[0]
    return f"{kept} {MASK}"


def mask_known(text: str) -> str:
    """The text without the secrets that this process knows."""
    for name, seen in tuple(_variables.items()):
        value = os.environ.get(name, "")
        if value != seen:
            _variables[name] = value
            remember_secret(value)
    # Longest first: a secret may contain another.
    for secret in sorted(_secrets, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, MASK)
    return text


# -- private keys and URLs -----------------------------------------------------------------------------------------------

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")


def _mask_private_keys(text: str) -> str:
    out: list[str] = []
    done = 0
    while (begin := _KEY_BEGINS.search(text, done)) is not None:
        out += [text[done : begin.start()], MASK]
        end = _KEY_ENDS.search(text, begin.end())
        if end is None:
            return "".join(out)
        done = end.end()
    return "".join(out) + text[done:]


_URL = re.compile(r"://(\S{1,2048}+)")
_LOGINS = re.compile(
    r"://[^\s/?#:@]{0,256}+:([^\s/?#@]{1,1024}+)@|\bpassword\s{0,4}+=\s{0,4}+(?:'([^']{1,1024}+)'|([^\s'&#]{1,1024}+))"
)
_LOGIN = re.compile(r"(?<![\w/.\-])[\w.\-]{1,64}+:[^\s@/:]{1,256}+@(?=[\w\[])")
_USER = re.compile(r"(?<!\S)(-u|--user|--proxy-user)([ =]{1,4}+)[^\s:]{0,256}+:\S{1,256}+")


def _mask_urls(text: str) -> str:
    return _USER.sub(rf"\1\2{MASK}", _LOGIN.sub(f"{MASK}@", _URL.sub(_masked_url, text)))


def _masked_url(found: re.Match[str]) -> str:
    rest = found.group(1)
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        return f"://{MASK}@{rest[authority.rindex('@') + 1 :]}"
    # A password may hold a slash. A port does not, and a host is not followed by an @.
    user, colon, port = authority.partition(":")
    if colon and "@" in rest and not port.isdecimal() and not user.startswith("["):
        return f"://{MASK}@{rest.rpartition('@')[2]}"
    return found.group(0)


# -- a telling word and its value ----------------------------------------------------------------------------------------

_PAIR = re.compile(
    r"(?<![\w.\-])([\w.\-]{1,200}+)"
    r"(?:[\"'\\]{0,4}+\s{0,4}+(?:=>|[=:\uff1a]|%3[DdAa])\s{0,4}+|[\"']\s{0,4}+,\s{0,4}+(?=[bB]?[\"'(\[])|(?<=\w)\s{1,4}+(?=\Z))"
)
_PARAMETER = re.compile(r"([?&;]([\w.\-]{0,80}+(?:%[0-9A-Fa-f]{2}[\w.\-]{0,80}+){1,80}+)=)[^&;#\s\"']{1,2000}+")
_OPTION = re.compile(r"(?<!\S)(--?[\w\-]{1,80}+)[ =]{1,4}+(?=\S)")
_SQL = re.compile(
    r"\b(password)\b(?=[^=\n]{1,80}=)[^=\n]{1,80}+=\s{0,4}+|\bidentified\s{1,4}+by\s{1,4}+(password\s{1,4}+)?+",
    re.IGNORECASE,
)
# Several words that are one, in languages that write it so.
_WORDS = re.compile(
    r"\b(?:mots?\s{1,2}+de\s{1,2}+passe|mật\s{1,2}+khẩu)[\"']?\s{0,4}+(?:[=:\uff1a]|est\b|là\b)\s{0,4}+()",
    re.IGNORECASE,
)
_MYSQL = re.compile(
    r"(\b(?:mysql|mariadb)[\w\-]{0,24}+(?:\s{1,4}+(?!-p)\S{1,256}+){0,16}+\s{1,4}+-p|\bsshpass\s{1,4}+-p\s{0,4}+)(?!\s)\S{1,256}+"
)
_CALL = re.compile(r"[A-Za-z_][\w.]{0,80}+\(")  # a value that shows itself as the call that makes it: SecretStr('...')
_TAG = re.compile(r"<([\w.\-:]{1,80}+)>([^<]{1,4096}+)</")
_QUOTE = re.compile(r"[bBrRuUfF]?(\\*+)([\"'])")
_BARE = re.compile(r"(?:[^\s&;,)}\]<>\"']|,(?=[^\s]))*+")
_ENCODED = re.compile(r"(?:[^\s&%]|%(?!26))*+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_SECRET = frozenset(
    "password passwords passwd passphrase passphrases passcode pwd secret secrets token credential credentials jwt sid sessionid apikey "
    "cookie authorization bearer "
    # one word that is two
    "dbpass userpass adminpass rootpass mypass mysqlpass pgpass sqlpass smtppass mailpass ftppass sshpass ldappass httppass proxypass redispass "
    "keypass storepass loginpass authpass "
    # as others say it
    "passwort passwoerter kennwort contrasena motdepasse senha wachtwoord losenord heslo salasana adgangskode passord jelszo sifre otp totp".split()
)
_FOREIGN = re.compile(
    "contraseña|lösenord|hasło|jelszó|şifre|парол[ьяюе]|密码|密碼|口令|パスワード|暗証番号|비밀번호|รหัสผ่าน|גיסמה|סיסמה|كلمة.?المرور"
)
# Only as the last part: `api_key`, not `key_error`.
_SECRET_LAST = frozenset("auth key keys sig signature pass".split())
_ENDINGS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "apikey",
    "accesskey",
    "secretkey",
    "accountkey",
    "pwd",
)
# The last part that makes a word harmless (`token_count`, `auth_error`), and the part before `key` that does
# (`primary_key`).
_HARMLESS_LAST = frozenset(
    "error errors exception warning name names count limit length size type url uri path file expired expires expiry missing invalid "
    "required policy field hint tokens budget class endpoint endpoints issuer provider ttl lifetime".split()
)
_HARMLESS_KEYS = frozenset(
    "primary foreign partition sort item run unique public idempotency group cache routing row duplicate composite user object index".split()
)
_DOUBTFUL = frozenset("pass tokens key keys".split())  # secrets follow them, and numbers and names do
_LINES = frozenset("authorization cookie".split())  # their value is the rest of the line
_SCHEMES = frozenset("bearer basic digest negotiate token apikey aws4-hmac-sha256".split())


def _telling(word: str) -> bool:
    """Whether a value after this word is likely to be a secret."""
    if not word.isascii() and _FOREIGN.search(word.lower()):
        return True
    parts: list[str] = [part.lower() for part in _PARTS.findall(word)]
    if not parts or parts[-1] in _HARMLESS_LAST:
        return False
    if parts[-2:] == ["key", "data"]:  # of a configuration for Kubernetes
        return True
    if _SECRET.intersection(parts):
        return True
    last = parts[-1]
    if last in _SECRET_LAST:
        alone = len(parts) == 1
        harmless_key = last in {"key", "keys"} and not alone and parts[-2] in _HARMLESS_KEYS
        return not harmless_key and not (last == "pass" and alone)
    return last.endswith(_ENDINGS)


def is_secret_name(word: str) -> bool:
    """
    Whether a setting of this name is a secret, whatever its value: ``api_key``, not ``primary_key``, nor ``key``, which
    may be one.
    """
    return _telling(word) and word.lower() not in _DOUBTFUL


def looks_like_secret(name: str, value: str) -> bool:
    """
    Whether a setting holds a secret itself: by its name, unless that is a doubtful one, or by the shape of its value.

    >>> looks_like_secret("password", "hunter2"), looks_like_secret("key", "movie_id2"), looks_like_secret("key", "xT4-9dQ2pLm0")
    (True, False, True)
    >>> looks_like_secret("", "postgresql://ann:hunter2@db/shop")
    True
    """
    last = name.lower() if name.lower() in _DOUBTFUL else _PARTS.findall(name)[-1:] == ["tokens"] and "tokens"
    if last and (_is_odd(value) if last == "pass" else len(value) >= 12 and _random(value)):
        return True
    if name and _telling(name) and name.lower() not in _DOUBTFUL:
        return bool(value)
    return holds_secret(value)


def _is_odd(value: str) -> bool:
    return len(value) >= 6 and " " not in value and _looks_secret(value)


def is_query_key(value: str) -> bool:
    """
    Whether the value of a parameter ``key`` of an address is a key for a service: there it is rarely anything else.

    >>> is_query_key("a1b2c3d4e5f6"), is_query_key("movie_id"), is_query_key("2026-11-16")
    (True, False, False)
    """
    return (len(value) >= 8 and _random(value)) or (len(value) >= 12 and _looks_secret(value))


UNKNOWN = "\0"  # in a text, stands for what is filled in later
_SHORTEST = 8  # characters of a text that has a secret in it
_ASSIGNED = re.compile(
    r"(?<![\w.\-])([\w.\-]{1,200}+)=[\"']?(?![\s&;,\"'<>(){}\[\]$:?*=\0]|%[(sd])([^\s&;,\"'\0]{1,2048}+)"
)
# A value in quotes, as JSON and programs have it; or a whole line that is a name and its value; or an option and its value.
_QUOTED = re.compile(
    r"(?<![\w.\-])([\w.\-]{1,200}+)[\"'\\]{0,3}+\s{0,4}+(?:=>|[=:])\s{0,4}+\\?+"
    r"(?:\"(?![\s$%:{<*?])([^\"\0\n]{1,2048}+)[\"\0]|'(?![\s$%:{<*?])([^'\0\n]{1,2048}+)['\0])"
)
_LINE = re.compile(
    r"^[ \t]{0,40}+(?:export[ ]{1,4}+)?+([\w.\-]{1,200}+)[ \t]{0,4}+[:=][ \t]{1,4}+"
    r"(?:(?:bearer|basic|token|apikey)[ ]{1,4}+)?+(?![\s$%:{<*?\"'(\[|>&\0]|%[(sd])([^\s\0]{1,2048}+)[ \t]{0,40}+$",
    re.IGNORECASE | re.MULTILINE,
)
_GIVEN_OPTION = re.compile(r"(?<!\S)--([\w\-]{1,80}+)(?:=|[ ]{1,4}+)([^\s\-$%{<\0][^\s\0]{0,2048}+)")
_SCHEME = re.compile(r"\s*+(?:bearer|basic|token|apikey)\s++([^\s\0]{4,2048}+)\s*+", re.IGNORECASE)
_QUERY_KEY = re.compile(r"[?&]key=([^&#\s\"'\0]{1,2048}+)")
_VALUES = frozenset("true false none null yes no string str text integer int number optional hidden redacted".split())


def holds_secret(text: str) -> bool:
    r"""
    Whether a text surely has a secret in it, whatever it is called: a password in an address, a value that is given to
    a telling name, the shape of a key. `UNKNOWN` in it is no secret. A sentence may have one that this does not see.

    >>> holds_secret("host=db password=hunter2"), holds_secret("https://x.example/?access_token=hunter2")
    (True, True)
    >>> holds_secret('{"password": "hunter2"}'), holds_secret("password: hunter2"), holds_secret("psql --password hunter2")
    (True, True, True)
    >>> holds_secret("host=db password=\0"), holds_secret("postgresql://ann:\0@db/shop"), holds_secret("set token=EXCLUDED.token")
    (False, False, False)
    """
    if len(text) < _SHORTEST:
        return False
    if "://" in text and any(map(_has_login, _URL.finditer(text))):
        return True
    if _SHAPES.search(text) is not None or _KEY_BEGINS.search(text) is not None:
        return True
    if "=" in text and any(_is_given(*found.groups()) for found in _ASSIGNED.finditer(text)):
        return True
    if ("=" in text or ":" in text) and (
        _is_quoted(text) or any(_is_given(*one.groups()) for one in _LINE.finditer(text))
    ):
        return True
    if "--" in text and any(
        _is_given(one[1], one[2]) and _looks_secret(one[2]) for one in _GIVEN_OPTION.finditer(text)
    ):
        return True
    if "key=" in text and any(is_query_key(found[1]) for found in _QUERY_KEY.finditer(text)):
        return True
    scheme = _SCHEME.fullmatch(text)
    return scheme is not None and _looks_secret(scheme[1])


def _is_quoted(text: str) -> bool:
    if "'" not in text and '"' not in text:
        return False
    return any(_is_given(one[1], one[2] or one[3]) for one in _QUOTED.finditer(text))


def _has_login(found: re.Match[str]) -> bool:
    authority = re.split(r"[/?#]", found[1], maxsplit=1)[0]
    if "@" not in authority:
        return UNKNOWN not in found[1] and _masked_url(found) != found[0]
    user, _, password = authority.rpartition("@")[0].partition(":")
    return bool((password or user).strip(UNKNOWN))


def _is_given(name: str, value: str) -> bool:
    """Whether this value of this name is a secret: not if it is the name of one, or a word."""
    if name.lower() in _DOUBTFUL:
        return len(value) >= 12 and _random(value)
    word = value.lower().strip(".,;!")
    ordinary = (
        not word.strip("*")
        or word in _ORDINARY
        or word in _VALUES
        or word in _SCHEMES
        or _CALL.match(value) is not None
    )
    return _telling(name) and not ordinary and not _telling(value)


def has_literal(name: str, text: str) -> bool:
    r"""
    Whether a secret of this name is written out in part, beside what is filled in later (`UNKNOWN`).

    >>> has_literal("password", "hunter\0"), has_literal("password", "\0"), has_literal("Authorization", "Bearer \0")
    (True, False, False)
    """
    words = [word.strip(":,;") for word in text.replace(UNKNOWN, " ").split()]
    words = [word for word in words if any(map(str.isalnum, word)) and word.lower() not in _SCHEMES]
    if not _LINES.isdisjoint(part.lower() for part in _PARTS.findall(name)):  # they have words of their own
        return any(_looks_secret(word) and "=" not in word for word in words)
    return bool(words)


def _mask_parameters(text: str) -> str:
    """Names of parameters may be spelt with percent signs; whoever reads the address knows them all the same."""
    if "%" not in text or "=" not in text:
        return text
    from urllib.parse import unquote

    return _PARAMETER.sub(lambda found: f"{found[1]}{MASK}" if _telling(unquote(found[2])) else found[0], text)


def _mask_pairs(text: str) -> str:
    text = _CODE.sub(rf"\1{MASK}", text)
    for pattern in (_PAIR, _OPTION, _SQL, _WORDS):
        text = _mask_values(text, pattern)
    return _MYSQL.sub(rf"\1{MASK}", text)


def _mask_values(text: str, pattern: re.Pattern[str]) -> str:
    out: list[str] = []
    done = at = 0
    while (found := pattern.search(text, at)) is not None:
        at = found.end()
        word = found.group(1) or "password"
        if not _telling(word) and word.lower() not in _DOUBTFUL:
            continue
        whole_line = not _LINES.isdisjoint(part.lower() for part in _PARTS.findall(word))
        end = _value_end(text, at, whole_line=whole_line, encoded=found.group(0)[-3:-1] == "%3")
        value = text[at:end].strip("[](){}'\".,;: ")
        if end > at and (_looks_secret(value) if word.lower() in _DOUBTFUL else value.lower() not in _ORDINARY):
            out += [text[done:at], MASK]
            done = at = end
    return "".join(out) + text[done:]


def _value_end(text: str, start: int, *, whole_line: bool, encoded: bool) -> int:
    if encoded:
        value = _ENCODED.match(text, start)
        return start if value is None else value.end()
    quote = _QUOTE.match(text, start)
    if quote is not None:
        return _quoted_end(text, quote)
    if whole_line:
        end = text.find("\n", start)
        return len(text) if end < 0 else end
    if text[start : start + 1] in tuple("([{"):
        return _bracket_end(text, start)
    call = _CALL.match(text, start)
    if call is not None:
        return _bracket_end(text, call.end() - 1)
    bare = _BARE.match(text, start)
    end = start if bare is None else bare.end()
    if text[start:end].lower() in _SCHEMES:  # the scheme is not the secret, what follows it is
        following = _BARE.match(text, min(end + 1, len(text)))
        return end if following is None else following.end()
    return end


def _quoted_end(text: str, quote: re.Match[str]) -> int:
    # Text in text in text: a string whose quotes are written with k backslashes (0, 1, 3, ...) is closed by a quote
    # after k of them, give or take pairs that stand for backslashes of its own.
    k, character = len(quote.group(1)), quote.group(2)
    at = quote.end()
    while (at := text.find(character, at)) >= 0:
        before = at
        while before > quote.end() and text[before - 1] == "\\":
            before -= 1
        at += 1
        if (at - 1 - before) % (2 * k + 2) == k:
            return at
    return len(text)


def _bracket_end(text: str, start: int) -> int:
    depth = 0
    for at in range(start, len(text)):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return at + 1
    return len(text)


def _mask_tags(text: str) -> str:
    return _TAG.sub(lambda tag: f"<{tag.group(1)}>{MASK}</" if _telling(tag.group(1)) else tag.group(0), text)


# -- secrets in sentences --------------------------------------------------------------------------------------------------

_PHRASE = re.compile(
    r"\b(password|passwd|passphrase|(?:secret|access|private|signing|encryption|api)[ _-]key|secret|token|credentials?|bearer|basic|digest|negotiate|"
    r"passwort|kennwort|contraseña|contrasena|senha|wachtwoord|lösenord|heslo|hasło|пароль|密码|密碼|パスワード|비밀번호)"
    r"((?:\s{1,4}+|(?<=[^\x00-\x7f])\s{0,4}+(?=[是は]))(?:(?:is|was|provided|given|supplied|used|ist|lautet|war|es|è|é|het|на|是|は)(?![a-zß-ÿ])\s{0,4}+:?\s{0,4}+)?+[\"']?)"
    r"([^\s\"']{1,2048}+)",
    re.IGNORECASE,
)
_ORDINARY = frozenset(
    "a again an and are at authentication be by can cannot change changed could did does expected expired failed field file for from has have if in "
    "incorrect into invalid is it limit may missing mismatch must no not of on or please policy prompt protected provided rejected required "
    "reset should than that the to too usage via was were when which will with wrong".split()
)


_CODE = re.compile(
    r"\b((?:(?:one[- ]?time|verification|security|login|sign[- ]in|confirmation|authentication|2fa|mfa|sms|otp)[ -](?:pass)?(?:code|word|pin)|otp|totp|passcode)"
    r"(?:\s{1,4}+(?:is|was|for\s\S{1,64}+\sis))?+\s{0,4}+[:=]?\s{0,4}+)\d(?:[ -]?\d){3,9}+(?!\d)",
    re.IGNORECASE,
)


def _mask_phrases(text: str) -> str:
    return _PHRASE.sub(_masked_phrase, text)


def _masked_phrase(found: re.Match[str]) -> str:
    word, between, value = found.groups()
    core = value.strip(".,:;!?()[]{}")
    ordinary = core.lower() in _ORDINARY or (word.lower() not in _PASSWORDS and not _looks_secret(core))
    return found.group(0) if not core or ordinary else f"{word}{between}{MASK}"


_PASSWORDS = frozenset("password passwd passphrase".split())  # whatever follows them, that is no ordinary word


def _looks_secret(value: str) -> bool:
    """Letters with digits, with = or in mixed cases: no word, and no number."""
    inner = value[1:]
    mixed = any(c.isdigit() for c in value) or "=" in value or (inner != inner.lower() and inner != inner.upper())
    return mixed and any(c.isalpha() for c in value)


# -- the shapes of keys ----------------------------------------------------------------------------------------------------

_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|pk|rk)[-_][\w\-]{14,}+|gh[pousr]_\w{16,}+|github_pat_\w{16,}+|glpat-[\w\-]{16,}+|xox[abeoprs]-[\w\-]{10,}+|hf_\w{16,}+|"
    r"npm_\w{16,}+|do[opr]_v1_\w{16,}+|shp(?:at|ca|pa|ss)_\w{16,}+|pypi-[\w\-]{16,}+|dckr_[a-z]{3}_[\w\-]{16,}+|SG\.[\w\-]{10,}+\.[\w\-]{10,}+|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}+|"
    # An address whose path is the right to send
    r"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/\-]{8,}+|discord(?:app)?\.com/api/webhooks/\d{1,30}+/[\w\-]{8,}+|"
    r"[\w\-]{1,60}+\.webhook\.office\.com/[\w/@.\-]{8,}+|api\.telegram\.org/bot\d{1,20}+:[\w\-]{8,}+|"
    r"AIza[\w\-]{20,}+|ya29\.[\w\-]{10,}+|eyJ[\w\-]{5,}+\.[\w\-]{5,}+(?:\.[\w\-]*+)?+)"
)
_LONG = re.compile(r"(?<![A-Za-z0-9+/=_\-])[A-Za-z0-9+/=_\-]{32,}+")
_LOWERS = re.compile(r"[a-z]{8,}")


def _mask_shapes(text: str) -> str:
    return _LONG.sub(_masked_long, _SHAPES.sub(MASK, text))


def _masked_long(found: re.Match[str]) -> str:
    """Long and random is a secret; long and made of words is a path or a name; digits and dashes are an id."""
    value = found.group(0)
    if "/" not in value or (len(value) == 40 and _random(value)):
        return (
            MASK if _random(value) or (len(value) >= 40 and not set(value.lower()) - set("0123456789abcdef")) else value
        )
    return "/".join(MASK if len(part) >= 20 and _random(part) else part for part in value.split("/"))


def _random(value: str) -> bool:
    mixed = any(c.islower() for c in value) and any(c.isupper() for c in value) and any(c.isdigit() for c in value)
    return mixed and _LOWERS.search(value) is None
