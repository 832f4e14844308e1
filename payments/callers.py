"""Where a request comes from, as far as that can be believed."""

import ipaddress

from django.conf import settings
from django.http import HttpRequest

UNKNOWN = "unknown"


def address_of(request: HttpRequest) -> str:
    """Return the caller's address; of IPv6 the network of one household or server (/64), which has many.

    Behind a proxy of FORWARDED_ALLOW_IPS it is what that proxy added to X-Forwarded-For: the last one. What stands
    before it is the caller's own word.
    """
    peer = request.META.get("REMOTE_ADDR", "")
    told = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    return (_is_proxy(peer) and _network(told)) or _network(peer) or UNKNOWN


def _network(text: str) -> str:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network(f"{address}/64", strict=False))


def _is_proxy(peer: str) -> bool:
    allowed = settings.FORWARDED_ALLOW_IPS.split(",")
    if "*" in allowed or not peer:  # a socket of this machine has no address
        return True
    return any(ipaddress.ip_address(peer) in ipaddress.ip_network(one, strict=False) for one in allowed if one)
