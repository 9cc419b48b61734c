"""The process: its port, HTTPS, and what keeps it from starting."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme
from http_server import serving

from metaq.testing.memory_server import MemoryServer

pytestmark = pytest.mark.process


def complaint(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "metaq_console", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def test_https(metaq_memory: MemoryServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "cert.pem")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with serving("--cluster", metaq_memory.cluster, "--tls-cert", str(tmp_path / "cert.pem")) as url:
        assert url.startswith("https://")
        with urllib.request.urlopen(f"{url}/v1/server", context=trusted, timeout=60) as answer:
            assert json.load(answer)["system"] == "metaq"


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        code, text = complaint("--port", port)
    where = f"metaq console: port {port} on 127.0.0.1"
    assert (code, text) == (1, f"{where}: Address already in use; choose another one (0 = any free port)\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cluster", "nonsense"], "cluster 'nonsense': expected host:port,host:port, for example"),
        (["--host", "0.0.0.0"], "host '0.0.0.0': other machines reach it, so a token is required; give one"),
        (["--tls-cert", "none.pem"], "TLS files none.pem: No such file or directory"),
        (["--host", "203.0.113.7", "--token-file", "TOKEN"], "port 0 on 203.0.113.7: Cannot assign requested address"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "token").write_text("a-secret-of-some-length")
    given = [str(tmp_path / "token") if one == "TOKEN" else one for one in arguments]
    code, text = complaint("--port", "0", *given)
    assert (code in (1, 2), text.startswith(f"metaq console: {sentence}"), text.count("\n")) == (True, True, 1), text


def test_a_missing_package_is_named_with_its_extra() -> None:
    program = "import sys; sys.modules['uvicorn'] = None; from metaq_console.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        1,
        'metaq console: uvicorn is not installed: pip install "metaq-spark[console]"\n',
    )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: object, **named: object) -> None:
        """Leave the redirect to the test."""


@pytest.mark.parametrize(
    ("proxies", "scheme"),
    [(["127.0.0.1"], "https"), (["10.0.0.0/8", "127.0.0.0/8"], "https"), (["10.0.0.1"], "http"), ([], "http")],
)
def test_a_proxy_says_whether_a_browser_speaks_https(
    metaq_memory: MemoryServer, tmp_path: Path, proxies: list[str], scheme: str
) -> None:
    """Only one that is named: its cookies are ``Secure``, and its redirects lead to where the browser is."""
    token, name = "a-secret-of-some-length", "metaq.example.org"
    (tmp_path / "token").write_text(token)
    given = [*("--token-file", str(tmp_path / "token"), "--allow-host", name, "--write")]
    given += [word for address in proxies for word in ("--proxy", address)]
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"Host": name, "X-Forwarded-Proto": "https", "Origin": f"https://{name}", "Accept": "text/html"}
    with serving("--cluster", metaq_memory.cluster, *given) as url:

        def answer(path: str, body: bytes | None = None, **more: str) -> urllib.error.HTTPError:
            with pytest.raises(urllib.error.HTTPError) as found:
                opener.open(urllib.request.Request(url + path, body, headers | more), timeout=60)
            found.value.close()
            return found.value

        login = answer("/login", f"token={token}&back=/topics".encode())
        assert (login.code, login.headers["Location"]) == (303, "/topics")
        cookie = login.headers["Set-Cookie"]
        assert ("; Secure" in cookie) is (scheme == "https")
        shown = cookie.partition(";")[0]
        assert answer("/topics/", Cookie=shown).headers["Location"] == f"{scheme}://{name}/topics"
        assert answer("/group/reset", b"group=g&topic=t&to=latest", Cookie=shown).code == 403, "an old form"
        assert answer("/login", b"token=x", Origin="https://evil.example").code == 403
        assert answer("/login", b"token=x", Host="evil.example").code == 421
