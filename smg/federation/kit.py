"""The folders of a federation: one for the relay and one for each hospital, with NVFLARE's certificates in them.

    OUT/relay/          for the operator of the relay
    OUT/NAME/           for hospital NAME
        federation.json     names of all hospitals, this one's name, the relay's address
        limits.json         what this hospital allows of its own data; it stays here
        flare/              NVFLARE's startup kit: certificate, key, configuration
        lead/               the certificate by which this hospital starts a round
        secret              key of this hospital's pseudonyms

Provisioning is NVFLARE's own. Its kits are changed in three ways: jobs may use smg's two carriers and NVFLARE's Collab
classes and no other, no job may bring code, and everything is stored and logged in the kit's own folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smg.errors import Misuse, SmgError
from smg.federation.limits import Limits
from smg.files import write_json

CLASSES = [
    "nvflare.collab.runtime.controller.CollabController",
    "nvflare.collab.runtime.executor.CollabExecutor",
    "smg.federation.carrier.Port",
    "smg.federation.carrier.Relay",
]
BUILDERS = [
    {
        "path": "nvflare.lighter.impl.workspace.WorkspaceBuilder",
        "args": {"template_file": ["master_template.yml"]},
    },
    {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
    {"path": "nvflare.lighter.impl.cert.CertBuilder", "args": {}},
]
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")  # a host's name or IPv4 address
RELAY = "relay"


@dataclass(frozen=True)
class Kit:
    """One participant's folder, opened."""

    folder: Path
    name: str
    hospitals: tuple[str, ...]
    host: str
    port: int

    @property
    def flare(self) -> Path:
        """Return the folder of NVFLARE's workspace."""
        return self.folder / "flare"

    @property
    def lead(self) -> Path:
        """Return the folder of the startup kit by which this hospital submits jobs."""
        return self.folder / "lead"

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.hospitals if name != self.name)

    @property
    def user(self) -> str:
        """Return the NVFLARE user that starts rounds at this hospital."""
        return _user(self.name)

    def secret(self) -> bytes:
        """Return the key of this hospital's pseudonyms."""
        return (self.folder / "secret").read_bytes()

    def limits(self) -> Limits:
        """Return the limits that this hospital sets."""
        path = self.folder / "limits.json"
        try:
            return Limits(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise SmgError(f"{path}: cannot be read ({error}); its keys are {', '.join(asdict(Limits()))}") from None
        except SmgError as error:
            raise SmgError(f"{path}: {error}") from None

    @classmethod
    def open(cls, folder: Path, relay: bool = False) -> Kit:
        """Return the kit in a folder that `smg federation init` made."""
        path = folder / "federation.json"
        try:
            about = json.loads(path.read_text())
            kit = cls(folder.resolve(), about["name"], tuple(about["hospitals"]), about["host"], about["port"])
        except (OSError, ValueError, KeyError, TypeError):
            raise SmgError(f"{folder}: no federation's folder; `smg federation init` makes one a hospital") from None
        if (kit.name == RELAY) != relay:
            raise SmgError(f"{folder}: is the folder of {kit.name}; give {'the relay' if relay else 'a hospital'}'s")
        return kit


def provision(out: Path, hospitals: list[str], host: str = "localhost", port: int = 8002) -> list[Path]:
    """Create and return the folders of the relay and of each hospital; give each to its participant only."""
    names = list(dict.fromkeys(hospitals))
    if len(names) < 2 or len({name.lower() for name in names}) != len(hospitals):
        raise Misuse(
            "too few hospitals, or two whose names differ in nothing but capitals; give --hospital NAME for each of "
            "two or more"
        )
    if not HOST.fullmatch(host) or host.lower() in {name.lower() for name in names}:
        raise Misuse(f"--host {host}: not a host's name, or a hospital's; give one such as relay.example.org")
    for name in names:
        if not NAME.fullmatch(name) or name == RELAY:
            raise Misuse(f"--hospital {name}: not a name; give up to 31 letters, digits, - and _, with a letter first")
    if out.exists() and any(out.iterdir()):
        raise SmgError(f"{out}: is not empty; give a new folder, since certificates are made once")
    made = _provisioned(out / ".nvflare", names, host, port)
    folders = []
    for name in (RELAY, *names):
        folder = out / name
        folder.mkdir(parents=True)
        folder.chmod(0o700)
        shutil.move(made / (host if name == RELAY else name), folder / "flare")
        write_json(folder / "federation.json", {"name": name, "hospitals": names, "host": host, "port": port})
        if name != RELAY:
            shutil.move(made / _user(name), folder / "lead")
            write_json(folder / "limits.json", asdict(Limits()))
            (folder / "secret").write_bytes(secrets.token_bytes(32))
        folders.append(folder)
    shutil.rmtree(out / ".nvflare")
    return folders


def _provisioned(workspace: Path, names: list[str], host: str, port: int) -> Path:
    """Let NVFLARE create its startup kits; the key of the root certificate is deleted with its workspace."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    people: list[dict[str, Any]] = [
        {"name": host, "type": "server", "org": "relay", "fed_learn_port": port, "admin_port": port}
    ]
    for name in names:
        people.append({"name": name, "type": "client", "org": org_of(name)})
        people.append({"name": _user(name), "type": "admin", "org": org_of(name), "role": "lead"})
    project = {"api_version": 3, "name": "smg", "participants": people, "builders": BUILDERS, "gen_scripts": False}
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        ctx = Provisioner(str(workspace), prepare_builders(project), None).provision(prepare_project(project))
    if ctx.get("build_error"):
        raise SmgError(f"provisioning failed: {'; '.join(ctx.get('errors', []))}")
    return Path(ctx["current_prod_dir"])


def settle(flare: Path) -> None:
    """Write NVFLARE's settings of a kit for its present folder.

    Jobs may use only the classes of `CLASSES` and bring no code, no matter who submits. What NVFLARE stores and logs
    stays in the kit: no log travels to the relay. Only warnings are logged; Collab would log several lines a call.
    """
    local = flare / "local"
    made = json.loads((local / "resources.json.default").read_text())
    made |= {"class_allow_list": CLASSES, "allow_log_streaming": False}
    made["components"] = [one for one in made["components"] if one["id"] not in ("site_log_streamer", "log_receiver")]
    if "snapshot_persistor" in made:
        made["servers"][0]["heart_beat_timeout"] = 30
        made["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(flare / "snapshots")
    for component in made["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(flare / "jobs")
    write_json(local / "resources.json", made)
    rights = json.loads((local / "authorization.json.default").read_text())
    rights["permissions"]["lead"] |= {"byoc": "none", "shell_commands": "none", "operate": "none"}
    rights["permissions"]["project_admin"] = rights["permissions"]["lead"]
    write_json(local / "authorization.json", rights)
    logs = json.loads((local / "log_config.json.default").read_text())
    logs["loggers"]["root"] = {"level": "WARNING", "handlers": ["logFileHandler"]}
    write_json(local / "log_config.json", logs)


def _user(name: str) -> str:
    return f"{name.lower()}@hospital.smg"


def org_of(name: str) -> str:
    """Return the organisation of a participant in NVFLARE."""
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
