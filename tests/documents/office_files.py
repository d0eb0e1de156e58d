"""Small files of every format that is converted to PDF, each with a text of its own."""

import io
import zipfile
from email.message import EmailMessage
from pathlib import Path

from anchorfold.documents import conversion

ODF = {
    "odt": ("text", "<office:text><text:p>{text}</text:p>{more}</office:text>"),
    "odp": (
        "presentation",
        '<office:presentation><draw:page draw:name="1"><draw:frame svg:width="20cm" svg:height="5cm" svg:x="1cm" '
        'svg:y="1cm"><draw:text-box><text:p>{text}</text:p></draw:text-box></draw:frame>{more}</draw:page>'
        "</office:presentation>",
    ),
    "ods": (
        "spreadsheet",
        '<office:spreadsheet><table:table table:name="1"><table:table-row><table:table-cell '
        'office:value-type="string"><text:p>{text}</text:p></table:table-cell>{more}</table:table-row></table:table>'
        "</office:spreadsheet>",
    ),
}
NAMESPACES = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{kind}:1.0"'
    for name, kind in (
        ("office", "office"), ("text", "text"), ("table", "table"), ("draw", "drawing"), ("svg", "svg-compatible"),
        ("manifest", "manifest"),
    )
)  # fmt: skip
W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
S = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
TYPE = "application/vnd.openxmlformats-officedocument"


def zipped(parts: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content, zipfile.ZIP_STORED if name == "mimetype" else None)
    return buffer.getvalue()


def open_document(
    extension: str, text: str, more: str = "", before: str = "", parts: dict[str, str] | None = None
) -> bytes:
    """An OpenDocument file with `more` XML after the text, `before` the body, and further parts."""
    kind, body = ODF[extension]
    mime, parts = f"application/vnd.oasis.opendocument.{kind}", parts or {}
    content = f'<office:document-content {NAMESPACES} office:version="1.2">{before}<office:body>'
    entries = "".join(
        f'<manifest:file-entry manifest:full-path="{name}" manifest:media-type="text/xml"/>'
        for name in ("content.xml", *parts)
    )
    manifest = (
        f'<manifest:manifest {NAMESPACES}><manifest:file-entry manifest:full-path="/" manifest:media-type="{mime}"/>'
        f"{entries}</manifest:manifest>"
    )
    return zipped(
        {
            "mimetype": mime,
            "content.xml": f"{content}{body.format(text=text, more=more)}</office:body></office:document-content>",
            **parts,
            "META-INF/manifest.xml": manifest,
        }
    )


def open_xml(main: str, content_type: str, parts: dict[str, str], relationships: str = "") -> bytes:
    types = "".join(
        f'<Override PartName="/{name}" ContentType="{kind}"/>' for name, kind in [(main, content_type), *EXTRA_TYPES]
    )
    folder, _, name = main.partition("/")
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Default Extension="xml" ContentType="application/xml"/>{types}</Types>',
            "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
            f'Type="{R}/officeDocument" Target="{main}"/></Relationships>',
            f"{folder}/_rels/{name}.rels": f'<Relationships xmlns="{PACKAGE}/relationships">{relationships}'
            "</Relationships>",
            **parts,
        }
    )


EXTRA_TYPES = [("xl/worksheets/sheet1.xml", f"{TYPE}.spreadsheetml.worksheet+xml")]


def docx(text: str, body: str = "", relationships: str = "") -> bytes:
    document = f'<w:document xmlns:w="{W}" xmlns:r="{R}"><w:body><w:p><w:r><w:t>{text}</w:t></w:r></w:p>{body}'
    return open_xml(
        "word/document.xml",
        f"{TYPE}.wordprocessingml.document.main+xml",
        {"word/document.xml": f"{document}</w:body></w:document>"},
        relationships,
    )


def xlsx(text: str, more: str = "") -> bytes:
    cell = f'<c r="A1" t="inlineStr"><is><t>{text}</t></is></c>'
    sheet = f'<worksheet xmlns="{S}"><sheetData><row r="1">{cell}{more}</row>'
    return open_xml(
        "xl/workbook.xml",
        f"{TYPE}.spreadsheetml.sheet.main+xml",
        {
            "xl/workbook.xml": f'<workbook xmlns="{S}" xmlns:r="{R}"><sheets><sheet name="1" sheetId="1" r:id="rId1"/>'
            "</sheets></workbook>",
            "xl/worksheets/sheet1.xml": f"{sheet}</sheetData></worksheet>",
        },
        f'<Relationship Id="rId1" Type="{R}/worksheet" Target="worksheets/sheet1.xml"/>',
    )


def converted(presentation: bytes, extension: str, folder: Path) -> bytes:
    """An OpenDocument presentation that LibreOffice writes in another format."""
    source = folder / "source.odp"
    source.write_bytes(presentation)
    profile = (folder / "profile").as_uri()
    command = [conversion.soffice() or "", f"-env:UserInstallation={profile}", "--headless", "--convert-to", extension]
    conversion._run([*command, "--outdir", str(folder), str(source)], folder)
    return source.with_suffix(f".{extension}").read_bytes()


def rtf(text: str) -> bytes:
    return rf"{{\rtf1\ansi {text}\par}}".encode()


def mail(text: str, attachments: dict[str, bytes]) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "Quarterly figures"
    message.set_content(text)
    for name, content in attachments.items():
        message.add_attachment(content, maintype="application", subtype="octet-stream", filename=name)
    return message.as_bytes()


def office_file(extension: str, text: str, folder: Path) -> bytes:
    if extension in ODF:
        return open_document(extension, text)
    if extension == "pptx":
        return converted(open_document("odp", text), "pptx", folder)
    if extension == "rtf":
        return rtf(text)
    return docx(text) if extension == "docx" else xlsx(text)
