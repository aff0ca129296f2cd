"""HTTP and HTTPS into an unnamed temporary file, with every address checked before it is spoken to.

A manifest is often somebody else's: its URLs must not reach what only this machine can, such as a cloud's
metadata service. So each hop of a redirect is resolved here, refused when any address is private, and the
connection goes to the very address that was checked, which a second look-up could have changed.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Callable
from typing import BinaryIO, cast

import httpx

from gemma4cli.errors import FetchError
from gemma4cli.media import traffic
from gemma4cli.media.options import MediaOptions

_HOPS = 5
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # an IPv4 address in its last 32 bits
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_CONNECT_S = 10.0
_IN_MEMORY = 32 << 20  # larger downloads go on to disk
_HEADERS = {"user-agent": "gemma4cli", "accept": "*/*", "accept-encoding": "identity"}


def download(url: str, options: MediaOptions) -> BinaryIO:
    """The body of a URL as an open file, at its start.

    Raises FetchError with a type of `private_address`, `unreachable`, `timeout`, `not_found`,
    `permission_denied`, `http_error`, `too_many_redirects`, `too_large`, `no_room` or `bad_location`.
    """
    with traffic.fetching() as count:
        return _download(url, options, count)


def _download(url: str, options: MediaOptions, count: Callable[[int], None]) -> BinaryIO:
    deadline = time.monotonic() + options.timeout_s
    shown = _shown(url)
    try:
        for _ in range(_HOPS + 1):
            parsed = httpx.URL(url)
            if parsed.scheme not in ("http", "https") or not parsed.host:
                raise FetchError("bad_location", f"not an http or https URL: {_shown(url)}")
            body, redirect = _get(parsed, options, deadline)
            if body is not None:
                count(body.seek(0, os.SEEK_END))
                body.seek(0)
                return body
            url = str(parsed.join(redirect))
        raise FetchError("too_many_redirects", f"more than {_HOPS} redirects: {shown}")
    except httpx.InvalidURL as error:
        raise FetchError("bad_location", f"not a URL ({error}): {shown}") from error
    except httpx.TimeoutException as error:
        raise FetchError("timeout", f"no answer within {options.timeout_s:g} s: {shown}") from error
    except httpx.HTTPError as error:
        raise FetchError("unreachable", f"the download failed ({error or type(error).__name__}): {shown}") from error


def _get(url: httpx.URL, options: MediaOptions, deadline: float) -> tuple[BinaryIO | None, str]:
    """One request: the body, or where the server sends us next."""
    proxied = _proxied(url)
    addresses = [] if options.allow_private_hosts else _public_addresses(url, proxied)
    if not addresses:  # the user permits all, or only the proxy resolves names
        return _request(url, url, proxied, options, deadline)
    for address in addresses[:-1]:
        try:
            return _request(url, url.copy_with(host=address), proxied, options, deadline)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            continue  # such as an IPv6 address where there is no IPv6
    return _request(url, url.copy_with(host=addresses[-1]), proxied, options, deadline)


def _request(
    url: httpx.URL, target: httpx.URL, proxied: bool, options: MediaOptions, deadline: float
) -> tuple[BinaryIO | None, str]:
    left = max(0.1, deadline - time.monotonic())
    headers = {**_HEADERS, "host": url.netloc.decode("ascii")}
    extensions = {"sni_hostname": url.host} if target.host != url.host else {}
    # One client a request: a pooled connection to an address could belong to another host name.
    with (
        httpx.Client(
            verify=_tls(), timeout=httpx.Timeout(left, connect=min(_CONNECT_S, left)), trust_env=proxied
        ) as client,
        client.stream("GET", target, headers=headers, extensions=extensions) as response,
    ):
        if response.is_redirect and "location" in response.headers:
            return None, response.headers["location"]
        _refuse_status(response, url)
        return _body(response, url, options, deadline), ""


def _body(response: httpx.Response, url: httpx.URL, options: MediaOptions, deadline: float) -> BinaryIO:
    limit = options.max_bytes
    too_large = FetchError("too_large", f"larger than the limit of {limit:,} bytes: {_shown(str(url))}")
    announced = response.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller closes it
    try:
        size = 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > limit:
                raise too_large
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the download took too long")
            file.write(chunk)
        file.seek(0)
    except OSError as error:
        file.close()
        where = f"{error.strerror or error}; TMPDIR names another folder than {tempfile.gettempdir()}"
        raise FetchError("no_room", f"the download cannot be kept ({where}): {_shown(str(url))}") from error
    except BaseException:
        file.close()
        raise
    return cast(BinaryIO, file)


def _refuse_status(response: httpx.Response, url: httpx.URL) -> None:
    code = response.status_code
    if 200 <= code < 300 and code != 204:
        return
    known = {401: "permission_denied", 403: "permission_denied", 404: "not_found", 410: "not_found"}
    busy = code >= 500 or code in (408, 425, 429)  # worth another try, later
    type_ = known.get(code, "server_error" if busy else "http_error")
    raise FetchError(type_, f"the server answered {code} {response.reason_phrase}: {_shown(str(url))}")


def _public_addresses(url: httpx.URL, proxied: bool) -> list[str]:
    """The addresses behind a URL's host, all of them public; none where a proxy will resolve the name."""
    host = url.host
    try:
        found = [str(ipaddress.ip_address(host.strip("[]")))]
    except ValueError:
        if proxied:
            found = ["127.0.0.1"] if host.lower().rstrip(".").rpartition(".")[2] == "localhost" else []
        else:
            found = _resolve(host, url)
    for address in found:
        if not _is_public(address):
            raise FetchError(
                "private_address",
                f"{host} is {'' if host == address else address + ', '}a private or loopback address; "
                f"--allow-private-hosts permits it: {_shown(str(url))}",
            )
    return found if not proxied else []


def _resolve(host: str, url: httpx.URL) -> list[str]:
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise FetchError("unreachable", f"the name {host} cannot be resolved: {_shown(str(url))}") from error
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip in _LOCAL_NAT64:
            return False
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast


def _proxied(url: httpx.URL) -> bool:
    proxies = urllib.request.getproxies()
    return bool(proxies.get(url.scheme) or proxies.get("all")) and not urllib.request.proxy_bypass(url.host)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _shown(url: str) -> str:
    """A URL for a message, without its user, password and query, which may be secret."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    path, query, _ = path.partition("?")
    text = f"{scheme}://{authority.rpartition('@')[2].partition('?')[0]}{slash}{path}" + ("?…" if query else "")
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= 200 else f"{text[:100]}…{text[-100:]}"
