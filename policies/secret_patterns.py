"""Patterns that detect secrets by name, by value, and inside settings and arguments."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

# The patterns up to REFERENCE are also part of CEL expressions. They must not use lookaround, which
# RE2 lacks, and the product of nested repetition limits must not exceed 1000. Repetition limits
# also keep the matching time in Python linear.
NAME: Final = re.compile(
    r"(?i)(passw(or)?d|passphrase|secret|api_?key|access_?key|private_?key|credential"
    r"|connection_?string|(^|[_.-])(token|pwd|(pg)?pass|pw)($|[_.-])|[a-z](Token|Pwd)$)"
)
VAGUE_NAME: Final = re.compile(r"(?i)(^|[_.-])(key|auth)$")
VAGUE_VALUE: Final = re.compile(r"^[A-Za-z0-9+=_-]{12,}$")
PASSWORD: Final = re.compile(r"(?i)passw|passphrase|pwd|pass([._-]?[0-9]+)?$")
PASSWORD_OPTION: Final = re.compile(
    r"(?i)(allow_empty|random_root|(^|_)(use|require))_(root_)?password$"
    r"|(passw(or)?d|passphrase)_([a-z]+_)?(access|age|auth|authentication|days|enabled|encrypted"
    r"|hint|iterations|length|login|required|reset|rounds|timeout|ttl)$"
)
"""Names of password options, such as `MYSQL_ALLOW_EMPTY_PASSWORD` and `PASSWORD_MIN_LENGTH`. Their
values are harmless booleans and numbers."""
_HARMLESS_VALUE: Final = (
    r"(?i:true|false|yes|no|none|null|auto|default|empty|dummy|unused|not[-_]needed|[0-9]{1,6})"
)
HARMLESS: Final = re.compile(rf"^{_HARMLESS_VALUE}$")
PATH_NAME: Final = re.compile(r"(?i)_(file|path|dir)$|^(?-i:(OLD)?PWD)$")
"""Names of variables whose values are not secrets if they are absolute paths."""
_TOKENIZER: Final = "(bos|eos|pad|unk|stop|cls|sep|mask|start|end|image|audio|video)"
NOT_SECRET_NAME: Final = re.compile(
    r"(?i)([_.-](name|url|uri|header|type|algorithm|arn|audience|backend(_kwargs)?|budget|cmd|dir"
    r"|endpoint|engine|env|expir(y|ation)|file|helper|interval|issuer|kind|lifetime|limit"
    r"|location|manager|method|mode|model|mount|namespace|path|period|policy|prefix|provider|ref"
    r"|region|role|root|rotation|selector|source|store|strategy|ttl|version)"
    r"|secretName|(?-i:[a-zA-Z]Name(Annotation)?)|pull_?secrets?"
    rf"|(^|_){_TOKENIZER}_token"
    r"|(^|_)(annotation|cache|class|column|dataset|feature|foreign|group|idempotency|image|index|input|join|label"
    r"|lookup|loss|messages?|meta(data)?|metric|model|object|output|partition|primary|prompt|public|response"
    r"|routing|shard|sort|tag|target|text)_key)$"
)
"""Names that contain a word such as `secret` or `key`, but do not name a secret.

Their values are still checked for secrets.
"""
FILE: Final = re.compile(
    r"^/([A-Za-z0-9_.-]+/)*[A-Za-z0-9_.-]+\.[a-z]{2,5}$"
    r"|^/(credentials|etc|mnt|run|secrets|var/run|vault/secrets)(/[A-Za-z0-9_.-]+)*$"
)
"""Absolute path with a file extension or in a common directory.

Other strings that start with `/` may be base64.
"""
VALUE: Final = re.compile(
    r"\b(A[KS]IA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{22,}"
    r"|gl(pat|ptt|dt|rt|soat|cbt)-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}"
    r"|sk-((ant|proj|svcacct)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{20,})|[sr]k_live_[A-Za-z0-9]{16,}"
    r"|sk-lf-[0-9a-f]{8}-[0-9a-f-]{27}|gsk_[A-Za-z0-9]{40,}|(xai|pplx)-[A-Za-z0-9]{40,}"
    r"|r8_[A-Za-z0-9]{30,}|dapi[0-9a-f]{32}|lsv2_[ps][tk]_[0-9a-f]{32}|tskey-[a-z]+-[A-Za-z0-9-]{16,}"
    r"|AIza[0-9A-Za-z_-]{35}|ya29\.[0-9A-Za-z_-]{20,}|xox[abeoprs]-[0-9A-Za-z-]{10,}"
    r"|hvs\.[A-Za-z0-9_-]{24,}|npm_[A-Za-z0-9]{36}|pypi-AgEI[A-Za-z0-9_-]{20,}"
    r"|dckr_pat_[A-Za-z0-9_-]{20,}|dop_v1_[a-f0-9]{64}|SG\.[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.|(Account|SharedAccess)Key=[A-Za-z0-9+/=]{40,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|LS0tLS1CRUdJTi(BSU0Eg|BQUklW|BFQyBQ|BPUEVO|BFTkNS|BEU0Eg)"
    r"|\b(aGZf|Z2hwX|Z2l0aHViX3Bhd|Z2xwYXQt|bnZhcGkt|c2stYW50L|c2stcHJvai|QUtJQ|eG94Yi|ZXlK)"
    r"[A-Za-z0-9+/_-]{20,}"
    r"|(?i:authorization): *(?i:basic) +[A-Za-z0-9+/=]{8,}"
    r"|\b(B|b)earer [A-Za-z0-9._~+/=-]{16,}"
    r"|((?i:[^\s;?&][?&](password|pwd))"
    r"|[A-Za-z0-9_]=[^\s;=]{1,100};( *((?i:password)|Pwd)|pwd|PWD))=[\"']?"
    r"[^\s;&\"'`$<{(*%\[#/][^\s;&\"'(]{3,200}([\"';&\s]|$)"
    r"|(?i:\b(host|user|username|dbname)=[^\s,;(]{1,100} +"
    r"([a-z_]{1,50}=[^\s,;(]{1,100} +){0,9}password=[\"']?"
    r"[^\s\"'`$<{(*%\[,]{4,})"
    r"|[?&]sig=[A-Za-z0-9%+/=]{20,}"
    r"|\"auths\"\s*:\s*\{\s*\"[^\"]{1,253}\"\s*:\s*\{[^{}]{0,300}\"auth\"\s*:\s*\"[A-Za-z0-9+/]{8}"
    r"|://hooks\.slack\.com/services/T[A-Z0-9]+/B[A-Z0-9]+/[A-Za-z0-9]{16,}"
    r"|://(discord|discordapp)\.com/api/webhooks/[0-9]+/[A-Za-z0-9_-]{16,}"
    # A data source name of Go's MySQL driver, such as `user:password@tcp(db:3306)`.
    r"|\b[A-Za-z0-9_.-]{1,64}:[^\s:@/$({]{3,200}@(tcp|unix)\("
    # A password in a URL, unless it is a shell variable in upper case, such as `$TOKEN`.
    r"|[a-z][a-z0-9+.-]{0,30}://[^/\s:@]*:"
    r"(([^/\s:@$]|\$[A-Z0-9_]*[^A-Z0-9_/\s:@])[^/\s:@]*[^/\s:@)}>]"
    r"|(\$[A-Za-z0-9_]*)?[^A-Za-z0-9_/\s:@)}>]|[A-Za-z0-9_])@"
)
_VARIABLE: Final = (
    "[A-Z0-9_]*(PASSW(OR)?D|PASSPHRASE|SECRET|API_KEY|ACCESS_KEY|PRIVATE_KEY|_(TOKEN|PASS|PWD))"
)
ARGUMENT: Final = re.compile(
    r"((--([a-z0-9]+[_-])*(password|passwd|passphrase|api[_-]?key|(access|secret)[_-]key"
    r"|client[_-]secret)"
    r"|--((auth|api|access|bearer|hf|hub|github|registration|wandb)[_-])?token)(=|\s+)"
    r"|\bsshpass[ \t]+-p[ \t]?|\baws_secret_access_key[ \t]+"
    r"|\bcurl\b[^|;&]{0,500}\s(-u|--user)[= ]?[\"']?[^\s:$]+:"
    rf"|\b{_VARIABLE}=)"
    r"[\"']?[^\s\"'`$<({;|&/\[-][^\s\"';|&]{3,}"
    # Overrides such as `+db.password=a-b-c`, but not variables, calls or attributes in code.
    r"|(^|[\s=.+_-])(?i:passw(or)?d|(api|secret|access)_?key"
    r"|client_?secret|(auth|api|access)_?token)=[\"']?"
    r"[A-Za-z_]{0,64}[0-9!@#%^*+~-][A-Za-z0-9!@#%^*+=_~-]{4,}([\s\"',;]|$)"
    r"|\bwandb[ \t]+login[ \t]+(--[^\s;|&]{1,100}[ \t]+){0,5}[A-Za-z0-9]{40}\b"
)
HARMLESS_ARGUMENT: Final = re.compile(
    r"^(--([a-z0-9]+[_-])*(token|key|secret)(=|\s+)|[A-Z0-9_]*(SECRET|KEY|TOKEN)=)[\"']?"
    rf"{_HARMLESS_VALUE}$|^([A-Z0-9_]*_)?(?i:{_TOKENIZER}_token)="
)
"""Matches of `ARGUMENT` that set no secret, such as `--token auto` and `EOS_TOKEN=end_of_text`."""
ENCODED: Final = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
REFERENCE: Final = re.compile(
    r"^(/?\$\([A-Za-z_][A-Za-z0-9_.-]*\))+$|^\{\{ *[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+ *\}\}$"
    r"|^\$(__)?(env|file)?\{((env|file|vault):)?[A-Za-z0-9_./-]+\}$|^os\.environ/[A-Za-z0-9_]+$"
    r"|^vault:[A-Za-z0-9_./-]+#[A-Za-z0-9_.-]+$|^ref\+[a-z0-9]+://[A-Za-z0-9_./#?=&-]+$"
)
"""References to variables, to parameters of Tekton and Argo, and to values that programs look up.

Programs look up values such as `${HF_TOKEN}`, `${env:HF_TOKEN}`, `$__file{/secrets/token}`
(Grafana), `os.environ/HF_TOKEN` (LiteLLM) and `vault:kv/data/hub#token` (Bank-Vaults).
"""
# The patterns from here on are not part of CEL expressions.
_REST: Final = r"[ \t\r]*([,;)}#].*)?$"
_EXPRESSION: Final = (
    rf"(?-i:(?![ \t]*([A-Za-z_][\w.]*(\(.{{0,200}}\)|\[.{{0,200}}\]|[(\[]){_REST}"
    rf"|[a-z_]+(\.[A-Za-z_]+)*\.[A-Za-z_]{{0,30}}(?i:pass|pwd|token|key|secret)[A-Za-z_]{{0,30}}{_REST}"
    rf"|(args|opts|options|self|settings|config|cfg)\.[a-z_.]{{1,60}}{_REST}"
    rf"|[a-z_]+_(token|key){_REST}|([a-z_]+_)?(token|key|secret|passw(or)?d)[ \t]*[,)}}])))"
)
"""Lookahead that rejects a call, an attribute (`args.password`) or a variable (`hf_token`)."""
_ASSIGNED_EXPRESSION: Final = re.compile(rf"(?im)\w+=(?=(?-i:[a-z_.]+)(\W|$))(?!{_EXPRESSION})")
"""Assignment of an expression that begins with a lower-case name, unlike most passwords."""
_NAME_SERVICES: Final = (
    r"([ \t]+(files|compat|db|nis(plus)?|ldap|sss|systemd|winbind|altfiles|extrausers"
    r"|(cache_)?oslogin|\[[^\]\n]*\]))+[ \t\r]*(#.*)?$"
)
_DEFAULT: Final = r"(?<=\$)\{(?=[A-Z0-9_]+:[-=][\"']?[^\"'`$])"
"""Start of a shell parameter with a literal default, as in `${HF_TOKEN:-abc}`."""
_SETTING_KEYS: Final = (
    rf"(^|(?<=[^\s;];)|(?<=[^\s;] ;))[ \t]*(-[ \t]+)?(?!passwd:{_NAME_SERVICES})"
    rf"([\"'][a-z0-9_.-]*passw(or)?d[\"'][ \t]*[:=]{_EXPRESSION}"
    rf"|[a-z0-9_.-]*passw(or)?d[ \t]*(:|={_EXPRESSION}))",
    r"[\"'][a-z0-9_.-]*passw(or)?d[\"'][ \t]*:(?=[ \t]*[\"'])",
    rf"(^|(?<!\$)[{{,]|{_DEFAULT})[ \t]*(-[ \t]+)?[\"']?(?-i:{_VARIABLE})"
    rf"[\"']?[ \t]*:{_EXPRESSION}",
    r"^[ \t]*(requirepass|masterauth)(?=[ \t])",
    r"^[ \t]*(machine[ \t]+\S{1,253}|default)\s+login\s+\S{1,253}\s+password(?=[ \t])",
    r"\b(alter|create)[ \t]+(user|role)\b[^;]{0,200}\bpassword[ \t]*e?(?=')",
    r"\bidentified[ \t]+(with[ \t]+['\"`]?\w+['\"`]?[ \t]+)?by(?=[ \t]*')",
)
ANNOTATION: Final = r"(?:[ \t]*[a-z][a-z.\[\] |]{0,60}=[ \t]*(?=[\"']))?"
"""Python type annotation before a literal value, as in `password: str | None = "abc"`."""
SETTING: Final = re.compile(
    rf"(?im)({'|'.join(_SETTING_KEYS)}){ANNOTATION}[ \t]*"
    r"(?!(true|false|null|none|str|string|bytes|SecretStr|Optional\[.*)[ \t\r]*([,;)}=|#].*)?$)"
    r"[\"']?[^\s\"'`$<{(|>&*!%\[,#][^\s\"'|&{]{3,}"
)
OPAQUE: Final = re.compile(
    r"(?im)((api|secret|access)_?key"
    r"|client_?secret|(auth|api|access|refresh|private)_?token)[\"']?[ \t]*[:=][ \t]*[\"']?"
    r"(?=[a-z+/]*[0-9])(?=[0-9+/]*[a-z])[a-z0-9+/]{24,}={0,2}[\"']?[ \t\r]*([,;}\])#]|$)"
    r"|\"username\"\s*:\s*\"[^\"]+\"\s*,\s*\"key\"\s*:\s*\"[0-9a-f]{32}\""
    r"|^(?![0-9]+:)[^\s:#]{1,253}:([0-9]{3,5}|\*)(:[^\s:]{1,63}){2}:"
    r"[^\s:$<{(/%][^\s:]{3,}[ \t\r]*$"
)
"""Settings such as `api_key` with a value of letters and digits, Kaggle's `kaggle.json` file, and
lines of PostgreSQL's `.pgpass` file (`host:port:database:user:password`).

Values with hyphens do not match, because they are usually names of Secrets.
"""
_NO_SPARK_REFERENCE: Final = r"(?!.*\.secret(s|KeyRef)\.)"
_NAMED_VALUE: Final = re.compile(
    rf"(?i)^\W*(\w+)[\"']?[ \t]*[:=]{ANNOTATION}[ \t]*[\"']?(.*?)[,;)}}]*$"
)
CONFIGURATION_NAME: Final = re.compile(
    rf"(?i)^{_NO_SPARK_REFERENCE}[^/]*\."
    r"(((client|access)[._-]?)?secret([._-]?(access[._-]?)?key)?"
    r"|client\.secret\..+|account\.key\..+|session[._-]token|private[._-]?key)$"
)
"""Names of properties that contain secrets, such as `spark.hadoop.fs.s3a.secret.key`."""
SPARK_VARIABLE: Final = re.compile(r"\.(driver|executor|appMaster)Env\.(\w+)$")
PASSWORD_FIELD: Final = re.compile(rf"(?i)^{_NO_SPARK_REFERENCE}(.*[a-z_.-])?password$")
ENCRYPTED: Final = re.compile(r"^ENC\[AES256_GCM,data:")
"""Prefix of a value that SOPS has encrypted."""
PLACEHOLDER: Final = re.compile(r"\{\{(?:(?!\}\}).)*\}\}|\$\{\w+\}")
"""Pattern of a value that a tool, such as Kyverno, Flux or envsubst, replaces."""
TEMPLATE: Final = re.compile(rf"[${{<]|^(true|false)$|{ENCRYPTED.pattern}")
_MIN_ENCODED_LENGTH: Final = 24
"""Minimum length of a base64 string that may contain a secret."""


def is_secret(name: str, text: str) -> bool:
    """Return whether a named value is a secret rather than a reference, path or harmless value."""
    if not text or REFERENCE.search(text):
        return False
    if HARMLESS.search(text) and (not PASSWORD.search(name) or PASSWORD_OPTION.search(name)):
        return False
    named = VAGUE_NAME.search(name) and not NOT_SECRET_NAME.search(name)
    if named and VAGUE_VALUE.search(text):
        return True
    is_header = bool(VALUE.search(f"{name}: {text}"))
    return is_header or _is_named_secret(name, text) or contains_secret(text)


def _is_named_secret(name: str, text: str) -> bool:
    if not NAME.search(name) or (PATH_NAME.search(name) and text.startswith("/")):
        return False
    harmless = NOT_SECRET_NAME.search(name) or FILE.search(text)
    return bool(PASSWORD.search(name)) or not harmless


@lru_cache(maxsize=65536)
def contains_secret(text: str) -> bool:
    """Return whether a string appears to contain a secret, in plain text or encoded in base64."""
    return bool(VALUE.search(text)) or any(map(_hides_secret, _hidden_texts(text)))


def _hides_secret(text: str) -> bool:
    return contains_secret(text) or any(settings(SETTING, text))


def _hidden_texts(text: str) -> Iterator[str]:
    """Yield the decoded text of each word that is valid base64."""
    without_spaces = "".join(text.split())
    for word in (
        {without_spaces, *ENCODED.findall(text)} if len(text) >= _MIN_ENCODED_LENGTH else ()
    ):
        body = word.rstrip("=").replace("-", "+").replace("_", "/")
        found = decoded(body + "=" * (-len(body) % 4))
        if found and all(letter.isprintable() or letter.isspace() for letter in found):
            yield found


def contains_argument(text: str) -> bool:
    """Return whether a command line contains an argument or assignment that sets a secret."""
    arguments = (match.group() for match in ARGUMENT.finditer(text))
    return not all(map(HARMLESS_ARGUMENT.search, arguments))


def contains_in_file(name: str, text: str) -> bool:
    """Return whether a ConfigMap value, which may be a whole file, contains a secret.

    The values of a JSON object under the `credentials` key may be mere names of Secrets. Each field
    of such an object is therefore checked under its own name.
    """
    fields = list(_fields(text)) if name == "credentials" else []
    if any(is_secret(*field) for field in fields or [(name, text)]):
        return True
    return contains_secret(text) or contains_setting(text)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the strings in a JSON object, each with the name of its field."""
    try:
        pending = [("", json.loads(text))] if text.lstrip().startswith("{") else []
    except (ValueError, RecursionError):
        return
    while pending:
        name, value = pending.pop()
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            pending += value.items()
        elif isinstance(value, list):
            pending += ((name, item) for item in value)


@lru_cache(maxsize=65536)
def contains_setting(text: str) -> bool:
    """Return whether a script or a configuration file sets a secret."""
    found = any(settings(ARGUMENT, text)) or any(settings(SETTING, text))
    return found or bool(OPAQUE.search(text))


def settings(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """Yield the matches of a pattern, except `name=value` pairs that are not secrets.

    Python expressions, such as `HF_TOKEN=args.token`, are not secrets.
    """
    match = pattern.search(text)
    while match:
        named = _NAMED_VALUE.search(match.group())
        is_expression = _ASSIGNED_EXPRESSION.match(text, match.start())
        is_harmless = is_expression or HARMLESS_ARGUMENT.search(match.group())
        if not is_harmless and (not named or is_secret(named[1], named[2])):
            yield match.group()
        # The last character may be the comma before the next name.
        match = pattern.search(text, match.end() - 1)


def decoded(text: str) -> str:
    """Return the text that a base64 string encodes, or an empty string if it encodes no text."""
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return ""
