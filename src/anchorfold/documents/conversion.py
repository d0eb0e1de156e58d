"""Conversion of other file formats to PDF, in the renderer process: LibreOffice for office files, WeasyPrint for HTML.

Converters have no access to the network, macros are disabled, and each conversion with LibreOffice has its own profile.
Converted files are cached by the digest of the original, so that a file is converted again only after it changed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from anchorfold.documents.limits import default_memory
from anchorfold.errors import UnreadableDocumentError

OFFICE = ("docx", "pptx", "xlsx", "odt", "odp", "ods", "rtf")
MARKUP = ("html", "htm", "md", "txt", "eml")
LIBREOFFICE, WEASYPRINT = "LibreOffice", "anchorfold[html]"
CONVERTERS = {**dict.fromkeys(OFFICE, LIBREOFFICE), **dict.fromkeys(MARKUP, WEASYPRINT)}
SOFFICE_VARIABLE = "ANCHORFOLD_SOFFICE"
CONVERSION_SECONDS = 100.0  # less than the time limit of the renderer, which would lose the reason
MAX_PDF_BYTES = 500 * 2**20
CACHE_BYTES = 2 * 2**30
INTERVAL = 0.1  # seconds between two checks of a converter's memory
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000  # flags of unshare(2)
PARENT_DEATH_SIGNAL = 1  # option of prctl(2)

# Settings of a private LibreOffice profile: no macros, no links to other files or hosts.
PROFILE = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema">
{items}
</oor:items>
"""
PROFILE_ITEM = '<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
SCRIPTING = "/org.openoffice.Office.Common/Security/Scripting"
PROFILE_VALUES = (
    (SCRIPTING, "MacroSecurityLevel", "3"),
    (SCRIPTING, "DisableMacrosExecution", "true"),
    (SCRIPTING, "DisableActiveContent", "true"),
    (SCRIPTING, "BlockUntrustedRefererLinks", "true"),
    ("/org.openoffice.Office.Writer/Content/Update", "Link", "0"),
    ("/org.openoffice.Office.Calc/Content/Update", "Link", "2"),
)  # fmt: skip


def soffice() -> str | None:
    """Return the LibreOffice command: `$ANCHORFOLD_SOFFICE`, or `soffice` of the PATH; None if it is not installed."""
    given = os.environ.get(SOFFICE_VARIABLE)
    return shutil.which(given) if given else shutil.which("soffice") or shutil.which("libreoffice")


@cache
def _has_weasyprint() -> bool:
    return find_spec("weasyprint") is not None


def missing_converter(extension: str) -> str | None:
    """Return what must be installed to read files with an extension (without its dot); None if nothing is missing."""
    converter = CONVERTERS.get(extension)
    if converter is None:
        return None
    available = soffice() is not None if converter == LIBREOFFICE else _has_weasyprint()
    return None if available else converter


def cached(digest: str, convert: Callable[[], bytes]) -> bytes:
    """Return the PDF of an original with this digest: from the cache, or converted and then cached."""
    from anchorfold.backbones.weights import cache_folder

    folder = cache_folder() / "converted"
    file = folder / f"{digest}.pdf"
    with suppress(OSError):
        data = file.read_bytes()
        os.utime(file)  # the least recently used files are removed first
        return data
    data = convert()
    with suppress(OSError):  # a full disk or a read-only folder costs time only
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as temporary:
            temporary.write(data)
        os.replace(temporary.name, file)
        _trim(folder)
    return data


def _trim(folder: Path) -> None:
    files = sorted(((entry.stat(), entry) for entry in folder.iterdir()), key=lambda item: item[0].st_mtime)
    total = sum(status.st_size for status, _ in files)
    for status, entry in files[:-1]:
        if total <= CACHE_BYTES:
            return
        entry.unlink(missing_ok=True)
        total -= status.st_size


def office_to_pdf(data: bytes, extension: str) -> bytes:
    """Convert an office file with LibreOffice.

    Raises:
        UnreadableDocumentError: LibreOffice is missing or failed, or a limit was exceeded; the message is the reason.
    """
    command = soffice()
    if command is None:
        raise UnreadableDocumentError("cannot be converted: LibreOffice is not installed")
    with tempfile.TemporaryDirectory(prefix="anchorfold-") as name:
        folder = Path(name)
        profile, source = folder / "profile", folder / f"document.{extension}"
        (profile / "user").mkdir(parents=True)
        items = "\n".join(PROFILE_ITEM.format(path=p, name=n, value=v) for p, n, v in PROFILE_VALUES)
        (profile / "user/registrymodifications.xcu").write_text(PROFILE.format(items=items), "utf-8")
        source.write_bytes(data)
        _run(
            [
                command, f"-env:UserInstallation={profile.as_uri()}", "--headless", "--norestore", "--nolockcheck",
                "--nodefault", "--nologo", "--convert-to", "pdf", "--outdir", str(folder), str(source),
            ],
            folder,
        )  # fmt: skip
        output = folder / "document.pdf"
        if not output.is_file():
            raise UnreadableDocumentError("damaged, or not supported by LibreOffice")
        if output.stat().st_size > MAX_PDF_BYTES:
            raise UnreadableDocumentError(f"more than {MAX_PDF_BYTES / 1e6:.0f} MB after conversion")
        return output.read_bytes()


def _run(command: list[str], folder: Path) -> None:
    """Run a converter in the process group of the renderer, so that it ends with the renderer."""
    memory, deadline = default_memory(), time.monotonic() + CONVERSION_SECONDS
    environment = {
        "PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8",
        **dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9"),
    }  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, preexec_fn=_isolate,  # noqa: PLW1509 (the only other thread takes no locks)
    )  # fmt: skip
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise UnreadableDocumentError(f"took longer than {CONVERSION_SECONDS:.0f} seconds to convert")
            if sum(map(_resident_bytes, _descendants(process.pid))) > memory:
                raise UnreadableDocumentError(f"needs more than {memory / 2**30:.3g} GB to convert")
            if _folder_bytes(folder) > 2 * MAX_PDF_BYTES:
                raise UnreadableDocumentError("writes too much while it is converted")
            time.sleep(INTERVAL)
    finally:
        for pid in _descendants(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _isolate() -> None:
    """Detach a new process from the network, and let it end with its parent. Runs between fork and exec."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (int(CONVERSION_SECONDS) * 2, int(CONVERSION_SECONDS) * 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MAX_PDF_BYTES, 2 * MAX_PDF_BYTES))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if libc.unshare(NEW_NETWORK) != 0:
            libc.unshare(NEW_USER | NEW_NETWORK)


def _descendants(root: int) -> list[int]:
    """Return a process and all processes below it (Linux); the process alone elsewhere."""
    parents: dict[int, int] = {}
    with suppress(OSError):
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError, IndexError, ValueError), open(f"/proc/{entry}/stat") as file:
                    parents[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
    processes = [root]
    for process in processes:
        processes += [pid for pid, parent in parents.items() if parent == process]
    return processes


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def html_to_pdf(html: str) -> bytes:
    """Convert HTML with WeasyPrint, which runs no scripts. Only `data:` URLs are read."""
    from PIL import ImageFile
    from weasyprint import HTML
    from weasyprint.urls import URLFetcher

    ImageFile.LOAD_TRUNCATED_IMAGES = False  # importing WeasyPrint enables it for the whole process

    return bytes(HTML(string=html, url_fetcher=URLFetcher(allowed_protocols=("data",))).write_pdf() or b"")
