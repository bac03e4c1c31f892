"""MONAI Label's REST protocol, as its module for 3D Slicer calls it: what each request does, without HTTP's details.

    GET /info/                      what the model is
    PUT /session/                   upload a scan for a while; GET and DELETE /session/ID
    PUT /datastore/?image=ID        upload a scan under an identifier of the caller's
    POST /infer/MODEL?image=ID      predict an uploaded scan, or the one in the request
    PUT /datastore/label?image=ID   store the corrected mask of an uploaded scan in the inbox

There is no training here (`/train/` is not found): `smg learn` takes the inbox as a round. `/auth/` is not found, which
the module reads as "no login", unless a token is set: then a login is needed, and the password is the token.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from smg import __version__
from smg.errors import SmgError
from smg.serve import spool
from smg.serve.inbox import Inbox
from smg.serve.model import ServedModel, summary
from smg.serve.multipart import Form, write_form
from smg.serve.node_options import Limits
from smg.serve.uploads import Upload, Uploads
from smg.serve.work import Work
from smg.sites.formats import NIFTI, NRRD
from smg.sites.volume import Volume, write_volume

RESULTS = (*NRRD, *NIFTI, ".mha")  # formats of masks that may be asked for
FINAL = ("", "final")  # tags of masks that a clinician has finished
JSON = "application/json"


class Failure(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Request:
    """A request: what is asked for, and how to read the files in it."""

    method: str
    path: str  # without the slash at its end
    query: Mapping[str, str]
    form: Callable[[Path], Form]  # reads the body's files into a folder
    body: Callable[[], bytes]  # reads a short body


@dataclass(frozen=True)
class Reply:
    """An answer."""

    body: bytes
    kind: str = JSON
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class Rest:
    """The requests that a node answers."""

    def __init__(
        self, model: ServedModel, work: Work, folder: Path, inbox: Path | None, token: str | None, limits: Limits
    ) -> None:
        self.model, self.work, self.folder, self.token = model, work, folder, token
        self.inbox = Inbox(inbox) if inbox else None
        self.uploads = Uploads(folder, limits.keep, 4 * limits.queue)
        self.seconds = int(limits.keep)

    def answer(self, request: Request) -> Reply:
        """Answer a request, or raise Failure."""
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["info"]:
                return _json(self._info())
            case "PUT", ["session"]:
                return self._open_session(request)
            case "GET", ["session", identifier]:
                return _json(self._session(self._find(identifier)))
            case "DELETE", ["session", identifier]:
                session = self._session(self._find(identifier))
                self.uploads.remove(identifier)
                return _json(session)
            case "GET", ["datastore"]:
                return _json(self._datastore())
            case "PUT", ["datastore"] | ["datastore", "image"]:
                return self._upload(request)
            case "PUT", ["datastore", "label"]:
                return self._correct(request)
            case "POST", ["infer", name]:
                return self._infer(request, name)
            case "GET", ["auth"] if self.token:
                return _json({"enabled": True, "client_id": "", "realm": ""})
            case "POST", ["auth", "token"] if self.token:
                return self._log_in(request)
            case "GET", ["auth", "token", "valid"] if self.token:  # it was, or the request would not be here
                return _json({"username": "smg"})
        raise Failure(HTTPStatus.NOT_FOUND, "there is no such thing here")

    # --- the model and what is held -----------------------------------------------------------------------------------

    def _info(self) -> dict[str, Any]:
        names = self.model.labels.names
        current = self.model.opened.round
        about = {
            "type": "segmentation",
            "labels": _numbered(names),
            "dimension": 3,
            "description": f"SMG-Learning {__version__}, round {current}; not a medical device",
            "config": {},
        }
        return {
            "name": f"SMG-Learning: {self.model.name}",
            "description": "Continual segmentation across hospitals",
            "version": __version__,
            "labels": list(names),
            "models": {self.model.name: about},
            "trainers": {},
            "strategies": {},
            "scoring": {},
            "train_stats": {},
            "datastore": self._datastore(),
        }

    def _datastore(self) -> dict[str, int]:
        """Return numbers only: an identifier may be a patient's name."""
        corrected = self.inbox.count if self.inbox else 0
        return {"total": max(len(self.uploads.held), corrected), "completed": corrected}

    def _session(self, upload: Upload) -> dict[str, Any]:
        times = {"create_ts": int(upload.created), "last_access_ts": int(upload.used), "expiry": self.seconds}
        return {"name": "", "path": "", "image": "", "meta": {}, **times}

    def _find(self, identifier: str) -> Upload:
        upload = self.uploads.find(identifier)
        if upload is None:
            raise Failure(HTTPStatus.NOT_FOUND, "the scan is not here any more; upload it again")
        return upload

    # --- uploads ------------------------------------------------------------------------------------------------------

    def _received(self, request: Request, part: str) -> Path:
        """Return a folder with the files of one part of the request."""
        folder = self.uploads.new_folder()
        try:
            form = request.form(folder)
            for name, files in form.files.items():
                if name != part:
                    for file in files:
                        file.unlink()
            if not form.files.get(part):
                raise Failure(HTTPStatus.BAD_REQUEST, f"the request has no file in its part {part!r}")
        except BaseException:
            spool.delete(folder)
            raise
        return folder

    def _open_session(self, request: Request) -> Reply:
        identifier = self.uploads.keep(self._received(request, "files"))
        return _json({"session_id": identifier, "session_info": self._session(self._find(identifier))})

    def _upload(self, request: Request) -> Reply:
        identifier = self.uploads.keep(self._received(request, "file"), request.query.get("image"))
        return _json({"image": identifier})

    # --- predicting and correcting ------------------------------------------------------------------------------------

    def _infer(self, request: Request, name: str) -> Reply:
        if name != self.model.name:
            raise Failure(HTTPStatus.NOT_FOUND, f"no such model; this node serves {self.model.name}")
        folder = self.uploads.new_folder()
        try:
            form = request.form(folder)
            if form.files.get("file"):
                scan = Upload(folder).scan if len(form.files) == 1 else form.files["file"][0]
            else:
                scan = self._find(request.query.get("session_id") or request.query.get("image") or "").scan
            suffix = _parameters(form).get("result_extension", ".nrrd")
            if suffix not in RESULTS:
                raise Failure(HTTPStatus.BAD_REQUEST, f"result_extension: no such format; give {', '.join(RESULTS)}")
            return self._predicted(scan, folder, str(suffix))
        finally:
            spool.delete(folder)

    def _predicted(self, scan: Path, folder: Path, suffix: str) -> Reply:
        replies: list[Reply] = []

        def do() -> str:
            try:
                made = self.model.predict(scan)
            except SmgError as error:
                raise SmgError(str(error).replace(f"{scan}: ", "")) from None
            labels, mask = self.model.labels, folder / f"mask{suffix}"
            write_volume(mask, Volume(labels.index(made.mask.array), made.mask.affine), like=scan)
            about = {
                "label_names": _numbered(labels.names),
                "volume_ml": round(made.millilitres, 3),
                "volumes_ml": {name: round(of, 3) for name, of in made.volumes.items()},
                "nearest": made.nearest,
                "unlike": made.unlike,
            }
            kind, body = write_form({"params": json.dumps(about)}, "image", mask.name, mask.read_bytes())
            replies.append(Reply(body, kind))
            return summary(made)

        job = self.work.submit("http", do)
        job.finished.wait()
        if job.failure:
            raise Failure(HTTPStatus.UNPROCESSABLE_ENTITY, job.failure)
        return replies[0]

    def _correct(self, request: Request) -> Reply:
        if self.inbox is None:
            raise Failure(HTTPStatus.FORBIDDEN, "this node stores no masks; start it with --inbox DIR")
        if request.query.get("tag", "") not in FINAL:
            raise Failure(HTTPStatus.BAD_REQUEST, "only finished masks are stored; send it without a tag")
        identifier = request.query.get("image", "")
        upload = self._find(identifier)
        folder = self.uploads.new_folder()
        try:
            form = request.form(folder)
            if len(form.files.get("label", [])) != 1:
                raise Failure(HTTPStatus.BAD_REQUEST, "the request has no file in its part 'label'")
            mask, scan = form.files["label"][0], upload.scan
            segments = _parameters(form).get("label_info")
            if segments is not None and not (isinstance(segments, list) and all(isinstance(s, dict) for s in segments)):
                raise Failure(HTTPStatus.BAD_REQUEST, 'label_info: write [{"name": ..., "idx": ...}, ...]')
            try:
                case = self.inbox.add(scan, mask, self.model.labels, segments)
            except SmgError as error:
                sentence = str(error).replace(f"{scan}: ", "the scan: ").replace(f"{mask}: ", "the mask: ")
                self.work.note_failure("http", f"a corrected mask was not stored: {sentence}")
                raise Failure(HTTPStatus.UNPROCESSABLE_ENTITY, sentence) from None
        finally:
            spool.delete(folder)
        return _json({"image": identifier, "label": case})

    # --- who calls ----------------------------------------------------------------------------------------------------

    def is_open(self, request: Request) -> bool:
        """Return whether a request needs no token."""
        return self.token is None or request.path.strip("/") in ("auth", "auth/token")

    def is_token(self, given: str) -> bool:
        """Return whether a caller's token is ours, in a time that does not depend on it."""
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def _log_in(self, request: Request) -> Reply:
        password = parse_qs(request.body().decode("utf-8", "replace")).get("password", [""])[0]
        if not self.is_token(password):
            raise Failure(HTTPStatus.UNAUTHORIZED, "wrong password; the password is the node's token")
        return _json({"access_token": password, "token_type": "bearer"})


def _numbered(names: tuple[str, ...]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names, start=1)}


def _parameters(form: Form) -> dict[str, Any]:
    try:
        found = json.loads(form.fields.get("params") or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failure(HTTPStatus.BAD_REQUEST, "params: not a JSON object")
    return found


def _json(value: object) -> Reply:
    return Reply(json.dumps(value).encode())
