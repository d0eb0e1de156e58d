"""Obtain the PDFs of the two corpora in the README's table, and verify them.

    python -m benchmarks.corpora.fetch corpora                 # both; or dev_debian, dev_azure
    anchorfold eval corpora/dev_debian

`dev_debian` has nine manuals of Debian 12 packages, by name and version; `dev_azure` seven office documents of
Azure-Samples/azure-search-openai-demo (MIT licence). Queries and relevance judgements are stored here, next to the
checksums in `files.json`. Debian moves superseded versions from its mirror to snapshot.debian.org: `--debs` takes a
folder with packages that were downloaded there. Files that exist and are intact are not downloaded again.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILES: dict[str, dict[str, dict[str, str]]] = json.loads((HERE / "files.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("corpora", nargs="*", help=", ".join(FILES))
    parser.add_argument("--debs", type=Path, help="folder with downloaded Debian packages")
    arguments = parser.parse_args()
    if unknown := set(arguments.corpora) - FILES.keys():
        parser.error(f"there is no corpus {min(unknown)}: choose from {', '.join(FILES)}.")
    for name in arguments.corpora or FILES:
        try:
            fetch_corpus(name, arguments.folder / name, arguments.debs)
        except (OSError, ValueError) as error:
            sys.exit(f"{name} is incomplete: {error}")
        print(f"{arguments.folder / name}: {len(FILES[name])} files verified")


def fetch_corpus(name: str, folder: Path, debs: Path | None = None) -> None:
    """Write a corpus to a folder: `pdfs/`, `queries.jsonl` and excluded pages."""
    (folder / "pdfs").mkdir(parents=True, exist_ok=True)
    for file in (HERE / name).iterdir():
        shutil.copyfile(file, folder / file.name)
    for file_name, source in FILES[name].items():
        path = folder / "pdfs" / file_name
        if path.is_file() and digest(path.read_bytes()) == source["sha256"]:
            continue
        content = read_source(source, debs)
        if digest(content) != source["sha256"]:
            raise ValueError(f"{file_name} from {source['url']} has another checksum than {source['sha256']}.")
        path.write_bytes(content)


def read_source(source: dict[str, str], debs: Path | None) -> bytes:
    """Download a file, or extract it from a Debian package."""
    url = source["url"]
    local = debs / url.rpartition("/")[2] if debs is not None else None
    content = local.read_bytes() if local is not None and local.is_file() else download(url)
    if "member" not in source:
        return content
    extracted = package_member(content, source["member"])
    return gzip.decompress(extracted) if source["member"].endswith(".gz") else extracted


def download(url: str) -> bytes:
    """Return the content of an address."""
    try:
        with urllib.request.urlopen(url, timeout=120) as answer:
            content: bytes = answer.read()
    except urllib.error.URLError as error:
        raise OSError(f"{url} cannot be downloaded ({error}): download it another way and use --debs.") from error
    return content


def package_member(package: bytes, member: str) -> bytes:
    """Return a file of a Debian package, which is an `ar` archive with a tar archive in it."""
    position = len(b"!<arch>\n")
    while position < len(package):
        header = package[position : position + 60]
        name, size = header[:16].decode().strip().rstrip("/"), int(header[48:58])
        content = package[position + 60 : position + 60 + size]
        if name.startswith("data.tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                file: Any = archive.extractfile(f"./{member}")
                extracted: bytes = file.read()
                return extracted
        position += 60 + size + size % 2
    raise ValueError(f"the package has no file {member}.")


def digest(content: bytes) -> str:
    """Return the SHA-256 checksum."""
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()
