"""The values of `format` that are enforced, as patterns. Each matches a subset of what its RFC allows."""

_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP = f"(?:\\d\\d{_FOURTH}|{_FOURTH}00)"
_MONTH_DAY = (
    "(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8])"
)
_YEAR = "(?:000[1-9]|00[1-9]\\d|0[1-9]\\d\\d|[1-9]\\d{3})"
_DATE = f"(?:{_YEAR}-(?:{_MONTH_DAY})|{_LEAP}-02-29)"
_TIME = "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
_BYTE = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

FORMATS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "uuid": "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    "ipv4": f"^{_BYTE}(?:\\.{_BYTE}){{3}}$",
    "hostname": f"^{_LABEL}(?:\\.{_LABEL}){{0,3}}$",
    "email": f"^[A-Za-z0-9_+-]{{1,32}}(?:\\.[A-Za-z0-9_+-]{{1,32}})?@{_LABEL}(?:\\.{_LABEL}){{1,2}}$",
    "uri": f"^https?://{_LABEL}(?:\\.{_LABEL}){{0,3}}(?::[1-9]\\d{{0,3}})?(?:/[A-Za-z0-9._~-]{{1,64}}){{0,8}}/?$",
}
