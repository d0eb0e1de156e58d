"""Office files, web pages, plain text and mail, converted to PDF and read like PDF files."""

from __future__ import annotations

import email
import html
import io
import zipfile
from email.message import EmailMessage
from email.policy import default as mail_policy
from pathlib import PurePosixPath

import pypdfium2 as pdfium

from anchorfold.documents.conversion import cached, html_to_pdf, missing_converter, office_to_pdf
from anchorfold.documents.formats import FileIdentity, damage_as
from anchorfold.documents.pdf_reader import PdfReader
from anchorfold.errors import UnreadableDocumentError

MAX_UNPACKED = 2**30  # bytes of an office file's parts
MAX_RATIO = 200  # unpacked by packed bytes; LibreOffice writes at most about 50
MAX_PARTS = 20_000
MAX_TEXT = 20 * 2**20  # bytes of a text or HTML file
MAX_ATTACHMENTS = 50
IMAGES = ("png", "jpg", "jpeg", "webp", "gif")
STYLE = (
    "<style>body{font:11pt sans-serif}pre{font:9.5pt monospace;white-space:pre-wrap;overflow-wrap:anywhere}"
    "img{max-width:100%}table{border-collapse:collapse}td,th{border:1px solid #999;padding:2pt 4pt}</style>"
)
# Parts that identify a kind of office file.
ZIPPED = {"docx": "word/", "pptx": "ppt/", "xlsx": "xl/"}
OPEN_DOCUMENT = {
    b"application/vnd.oasis.opendocument.text": "odt",
    b"application/vnd.oasis.opendocument.presentation": "odp",
    b"application/vnd.oasis.opendocument.spreadsheet": "ods",
}


class ConvertedReader(PdfReader):
    """Reader of a format that is converted to PDF. The identity is that of the original."""

    def __init__(self, data: bytes, identity: FileIdentity, pixels: int) -> None:
        super().__init__(cached(identity.digest, lambda: self.convert(data)), identity, pixels)

    @staticmethod
    def convert(data: bytes) -> bytes:
        """Convert the content of a file to PDF."""
        raise NotImplementedError


class OfficeReader(ConvertedReader):
    """Reader of Microsoft Office, OpenDocument and RTF files."""

    @staticmethod
    def convert(data: bytes) -> bytes:
        """Check the container and convert the file with LibreOffice."""
        return office_to_pdf(data, office_extension(data))


class HtmlReader(ConvertedReader):
    """Reader of HTML files."""

    @staticmethod
    def convert(data: bytes) -> bytes:
        """Convert HTML without its scripts and external resources."""
        return markup_to_pdf(decode_text(data))


class MarkdownReader(ConvertedReader):
    """Reader of Markdown files."""

    @staticmethod
    def convert(data: bytes) -> bytes:
        """Convert CommonMark with tables."""
        from markdown_it import MarkdownIt

        return markup_to_pdf(STYLE + MarkdownIt("commonmark").enable("table").render(decode_text(data)))


class TextReader(ConvertedReader):
    """Reader of plain text files."""

    @staticmethod
    def convert(data: bytes) -> bytes:
        """Print the text with its line breaks."""
        return markup_to_pdf(f"{STYLE}<pre>{html.escape(decode_text(data))}</pre>")


class MailReader(ConvertedReader):
    """Reader of mail messages: header and body, followed by the pages of readable attachments."""

    @staticmethod
    def convert(data: bytes) -> bytes:
        """Convert the body and the attachments and join the pages."""
        with damage_as("not a mail message, or damaged"):
            message = email.message_from_bytes(data, policy=mail_policy)
            if not message.keys():
                raise UnreadableDocumentError("not a mail message, despite its extension")
            assert isinstance(message, EmailMessage)
            parts = list(message.iter_attachments())
            attachments = [_attachment(part) for part in parts[:MAX_ATTACHMENTS]]
            names = [name for name, _ in attachments]
            if len(parts) > MAX_ATTACHMENTS:
                names.append(f"{len(parts) - MAX_ATTACHMENTS} more (not included)")
            body = _mail_body(message, names)
        return join_pdfs([markup_to_pdf(body), *(pdf for _, pdf in attachments if pdf)])


def office_extension(data: bytes) -> str:
    """Return the extension that fits an office file's content; raise for archives that unpack to too much."""
    if data.startswith(b"{\\rtf"):
        return "rtf"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            unpacked = sum(part.file_size for part in parts)
            if unpacked > MAX_UNPACKED or unpacked > MAX_RATIO * len(data) + 2**20 or len(parts) > MAX_PARTS:
                raise UnreadableDocumentError(f"unpacks to {unpacked / 1e6:,.0f} MB, which is not plausible")
            names = [part.filename for part in parts]
            if "mimetype" in names:
                kind = archive.read("mimetype")[:100].strip()
                if kind in OPEN_DOCUMENT:
                    return OPEN_DOCUMENT[kind]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise UnreadableDocumentError("not an office file, or damaged or encrypted") from error
    for extension, prefix in ZIPPED.items():
        if any(name.startswith(prefix) for name in names):
            return extension
    raise UnreadableDocumentError("not an office file, despite its extension")


def decode_text(data: bytes) -> str:
    """Decode a text file: UTF-8 or UTF-16 with a byte order mark, else Windows-1252."""
    if len(data) > MAX_TEXT:
        raise UnreadableDocumentError(f"more than {MAX_TEXT / 2**20:.0f} MB of text")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    if "\0" in text:
        raise UnreadableDocumentError("not a text file, despite its extension")
    return text


def markup_to_pdf(markup: str) -> bytes:
    """Convert HTML to PDF; raise UnreadableDocumentError if it cannot be laid out."""
    with damage_as("cannot be laid out"):
        return html_to_pdf(markup)


def join_pdfs(files: list[bytes]) -> bytes:
    """Return one PDF with the pages of several."""
    joined = pdfium.PdfDocument.new()
    for data in files:
        joined.import_pages(pdfium.PdfDocument(data))
    buffer = io.BytesIO()
    joined.save(buffer)
    return buffer.getvalue()


def _mail_body(message: EmailMessage, attachments: list[str]) -> str:
    rows = "".join(
        f"<tr><td>{name}</td><td>{html.escape(str(message[name]))}</td></tr>"
        for name in ("From", "To", "Cc", "Date", "Subject")
        if message[name]
    )
    if attachments:
        rows += f"<tr><td>Attachments</td><td>{html.escape(', '.join(attachments))}</td></tr>"
    part = message.get_body(("html", "plain"))
    text = part.get_content() if part is not None else ""
    if part is None or part.get_content_subtype() != "html":
        text = f"<pre>{html.escape(text)}</pre>"
    return f"{STYLE}<table>{rows}</table>{text}"


def _attachment(part: EmailMessage) -> tuple[str, bytes | None]:
    """Return the name of an attachment, and its pages as PDF; the name contains the reason if there are none."""
    name = part.get_filename() or part.get_content_type()
    try:
        return name, _attachment_pages(PurePosixPath(name).suffix.lower().removeprefix("."), part)
    except UnreadableDocumentError as reason:
        return f"{name} (not included: {reason})", None


def _attachment_pages(extension: str, part: EmailMessage) -> bytes:
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes) or extension not in ("pdf", *IMAGES, *CONVERTED):
        raise UnreadableDocumentError("unsupported format")
    if (converter := missing_converter(extension)) is not None:
        raise UnreadableDocumentError(f"{converter} is not installed")
    if extension == "pdf":
        try:
            joined = join_pdfs([content])
        except pdfium.PdfiumError as error:
            raise UnreadableDocumentError("damaged or encrypted") from error
        return joined
    return _image_page(content) if extension in IMAGES else CONVERTED[extension].convert(content)


def _image_page(content: bytes) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    with damage_as("damaged image"):
        Image.open(io.BytesIO(content)).convert("RGB").save(buffer, "PDF")
    return buffer.getvalue()


CONVERTED: dict[str, type[ConvertedReader]] = {
    **dict.fromkeys(("docx", "pptx", "xlsx", "odt", "odp", "ods", "rtf"), OfficeReader),
    **dict.fromkeys(("html", "htm"), HtmlReader),
    "md": MarkdownReader,
    "txt": TextReader,
}
