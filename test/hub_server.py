"""A server on loopback with the routes of the Hugging Face hub that a download uses."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

MAIN = 'main'


class Hub:
    """Repositories by name: {commit: {path: bytes}}; the last commit is `main`."""

    def __init__(self):
        self.repositories = {}
        self.gated, self.broken = set(), False
        self.requests = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def do_GET(self):
                hub._answer(self)

            def do_HEAD(self):
                hub._answer(self)

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_port}'
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def push(self, name, folder, **changed):
        """Add a commit with the files of a folder; return its hash."""
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob('*')
            if path.is_file()
        } | changed
        commits = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(f'{name} {len(commits)}'.encode()).hexdigest()
        commits[commit] = files
        return commit

    def _answer(self, request):
        path = unquote(urlsplit(request.path).path)
        self.requests.append(f'{request.command} {path}')
        if self.broken:
            return _send(request, 503, b'down')
        parts = path.strip('/').split('/')
        is_api = parts[:2] == ['api', 'models']
        owner, name, *rest = parts[2:] if is_api else parts
        repository = f'{owner}/{name}'
        if repository not in self.repositories:
            return _send(request, 404, code='RepoNotFound')
        commits = self.repositories[repository]
        revision = rest[1] if len(rest) > 1 else MAIN
        commit = [*commits][-1] if revision == MAIN else revision
        if commit not in commits:
            return _send(request, 404, code='RevisionNotFound')
        files = commits[commit]
        if is_api and rest[:1] != ['tree']:
            return _send_json(request, {'id': repository, 'sha': commit, 'siblings': []})
        if is_api:
            return _send_json(
                request,
                [
                    {'type': 'file', 'path': path, 'size': len(data), 'oid': _oid(data)}
                    for path, data in files.items()
                ],
            )
        if repository in self.gated:
            return _send(request, 403, code='GatedRepo')
        file = '/'.join(rest[2:])
        if file not in files:
            return _send(request, 404, code='EntryNotFound')
        data = files[file]
        return _send(request, 200, data, **{'ETag': f'"{_oid(data)}"', 'X-Repo-Commit': commit})


def _oid(data):
    return hashlib.sha1(data).hexdigest()


def _send_json(request, value):
    return _send(request, 200, json.dumps(value).encode(), **{'Content-Type': 'application/json'})


def _send(request, status, body=b'', code=None, **headers):
    request.send_response(status)
    if code:
        headers |= {'X-Error-Code': code, 'X-Error-Message': code}
    for name, value in (headers | {'Content-Length': str(len(body))}).items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != 'HEAD':
        request.wfile.write(body)


@pytest.fixture
def server(tmp_path, monkeypatch):
    server = Hub()
    monkeypatch.setattr(constants, 'ENDPOINT', server.url)
    template = server.url + '/{repo_id}/resolve/{revision}/{filename}'
    monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    monkeypatch.chdir(tmp_path)
    yield server
    server.close()
