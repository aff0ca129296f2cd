"""Downloads from a server in the test: what it may say, and where it may send us."""

from __future__ import annotations

import errno
import io
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gemma4cli.errors import FetchError
from gemma4cli.media import MediaOptions
from gemma4cli.media.fetch import fetch
from gemma4cli.records import Media

OPEN = MediaOptions(allow_private_hosts=True, timeout_s=5)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path, _, query = self.path.partition("?")
        match path.strip("/").split("/"):
            case ["body"]:
                self._answer(200, b"body")
            case ["sized", size]:
                self._answer(200, b"x" * int(size))
            case ["host"]:
                self._answer(200, self.headers["host"].encode())
            case ["status", code]:
                self._answer(int(code), b"")
            case ["to"]:
                self._answer(302, b"", {"location": query})
            case ["endless"]:
                self.send_response(200)
                self.end_headers()
                try:
                    for _ in range(1000):
                        self.wfile.write(b"x" * 65536)
                except OSError:
                    pass
            case ["slow"]:
                self.send_response(200)
                self.end_headers()
                for _ in range(1000):
                    if self.server.stopping.wait(0.05):
                        return
                    try:
                        self.wfile.write(b"x")
                        self.wfile.flush()
                    except OSError:
                        return
            case ["silent"]:
                self.server.stopping.wait(10)
            case ["short"]:
                self.send_response(200)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"x" * 10)
            case _:
                self._answer(404, b"nothing here")

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def asked() -> list[str]:
    """The paths that the server was asked for."""
    return []


@pytest.fixture(scope="module")
def server(asked: list[str]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.stopping = threading.Event()
        http.asked = asked
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.stopping.set()
        http.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def failure(url: str, options: MediaOptions) -> FetchError:
    with pytest.raises(FetchError) as caught:
        fetch(Media(url), options)
    return caught.value


def test_a_body_comes_as_a_seekable_file(server: str) -> None:
    with fetch(Media(f"{server}/body"), OPEN) as file:
        assert file.read() == b"body"
        file.seek(1)
        assert file.read() == b"ody"


def test_redirects_are_followed(server: str) -> None:
    with fetch(Media(f"{server}/to?/to?{server}/body"), OPEN) as file:
        assert file.read() == b"body"


def test_endless_redirects_end(server: str) -> None:
    assert failure(f"{server}/to?/to", OPEN).type in ("too_many_redirects", "bad_location")
    assert failure(f"{server}/to?" * 12 + "/body", OPEN).type == "too_many_redirects"


@pytest.mark.parametrize(
    ("code", "type_"),
    [(404, "not_found"), (410, "not_found"), (401, "permission_denied"), (403, "permission_denied"),
     (500, "server_error"), (204, "http_error"), (304, "http_error")],
)  # fmt: skip
def test_answers_that_are_no_file(server: str, code: int, type_: str) -> None:
    error = failure(f"{server}/status/{code}", OPEN)
    assert error.type == type_
    assert str(code) in str(error)


def test_a_download_stops_at_its_limit(server: str) -> None:
    options = MediaOptions(allow_private_hosts=True, max_bytes=100_000)
    assert failure(f"{server}/endless", options).type == "too_large"
    assert failure(f"{server}/body", MediaOptions(allow_private_hosts=True, max_bytes=3)).type == "too_large"


@pytest.mark.parametrize("path", ["slow", "silent"])
def test_a_server_that_dawdles_is_left(server: str, path: str) -> None:
    error = failure(f"{server}/{path}", MediaOptions(allow_private_hosts=True, timeout_s=0.3))
    assert error.type == "timeout"


def test_a_body_that_breaks_off_is_a_failure(server: str) -> None:
    assert failure(f"{server}/short", OPEN).type == "unreachable"


def test_a_refused_connection_fails_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert failure(f"http://127.0.0.1:{port}/x", OPEN).type == "unreachable"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "[::]", "2130706433",
     "0x7f.1", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[fe80::1]", "[fd00::1]", "100.64.0.1", "224.0.0.1",
     "[64:ff9b:1::1]", "[2002:7f00:1::]"],
)  # fmt: skip
def test_private_addresses_are_refused_with_the_flag_that_permits_them(host: str) -> None:
    error = failure(f"http://{host}:1/x", MediaOptions())
    assert error.type == "private_address"
    assert "--allow-private-hosts" in str(error)


def test_a_name_that_resolves_to_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 80)) for ip in ("93.184.216.34", "10.0.0.8")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    error = failure("http://rebinding.example/x", MediaOptions())
    assert error.type == "private_address"
    assert "10.0.0.8" in str(error)


def test_a_redirect_to_a_private_address_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first hop is let through as if it were public; the second is looked at anew.
    from gemma4cli.media import download

    port = int(server.rpartition(":")[2])
    monkeypatch.setattr(download, "_is_public", lambda address: address == "127.0.0.1")
    monkeypatch.setattr(download, "_resolve", lambda host, url: ["127.0.0.1"])
    with fetch(Media(f"http://public.example:{port}/host"), MediaOptions()) as file:
        assert file.read() == f"public.example:{port}".encode()
    error = failure(f"http://public.example:{port}/to?http://[::1]:{port}/body", MediaOptions())
    assert error.type == "private_address"


def test_a_redirect_to_a_file_is_refused(server: str) -> None:
    assert failure(f"{server}/to?file:///etc/passwd", OPEN).type == "bad_location"


@pytest.mark.parametrize("url", ["http://", "http:///x", "https://[::1", "http://a b/", "http://host:99999/"])
def test_broken_urls(url: str) -> None:
    assert failure(url, MediaOptions()).type in ("bad_location", "unreachable")


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert failure("https://nowhere.invalid/x", MediaOptions()).type == "unreachable"


def test_messages_keep_passwords_and_signatures_to_themselves(server: str) -> None:
    url = f"{server}/status/404?X-Amz-Signature=secret".replace("//", "//user:password@")
    message = str(failure(url, OPEN))
    assert "secret" not in message
    assert "password" not in message


def test_behind_a_proxy_names_are_the_proxys_business_but_addresses_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free.getsockname()[1]}")
    assert failure("http://169.254.169.254/meta", MediaOptions()).type == "private_address"
    assert failure("http://localhost/x", MediaOptions()).type == "private_address"
    assert failure("http://public.example/x", MediaOptions()).type == "unreachable"


def test_a_download_that_is_kept_is_not_asked_for_again(server: str, asked: list[str]) -> None:
    keep = replace(OPEN, keep=True, max_bytes=100)
    with fetch(Media(f"{server}/sized/60?a"), keep) as one, fetch(Media(f"{server}/sized/60?a"), keep) as other:
        assert one.read(10) == other.read(10) == b"x" * 10
        assert len(one.read()) == len(other.read()) == 50
    assert asked.count("/sized/60?a") == 1
    with fetch(Media(f"{server}/sized/60?b"), keep) as file:  # there is no room for both
        assert len(file.read()) == 60
    fetch(Media(f"{server}/sized/60?a"), keep).close()
    assert asked.count("/sized/60?a") == 2
    for number in range(9):
        fetch(Media(f"{server}/sized/1?{number}"), keep).close()
    fetch(Media(f"{server}/sized/1?1"), keep).close()
    assert asked.count("/sized/1?1") == 1
    fetch(Media(f"{server}/sized/1?0"), keep).close()
    assert asked.count("/sized/1?0") == 2
    fetch(Media(f"{server}/body"), OPEN).close()
    fetch(Media(f"{server}/body"), OPEN).close()
    assert asked.count("/body") > 1


def test_a_failed_download_is_not_kept(server: str) -> None:
    for _ in range(2):
        assert failure(f"{server}/status/404", replace(OPEN, keep=True)).type == "not_found"


def test_a_full_disk_is_said_to_be_one(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda **_: Full())
    caught = failure(f"{server}/body", OPEN)
    assert (caught.type, "TMPDIR" in str(caught)) == ("no_room", True)
