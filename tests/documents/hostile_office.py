"""Office files that load from the network, run endless macros, or unpack to too much; each with a page of text."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.documents import office_files
from tests.documents.office_files import R, W, docx, open_xml, rtf, xlsx, zipped

DTD = '<!DOCTYPE x [<!ENTITY a "{first}">{entities}]>'
SCRIPT = (
    'xmlns:script="urn:oasis:names:tc:opendocument:xmlns:script:1.0" xmlns:ooo="http://openoffice.org/2004/office" '
    'xmlns:dom="http://www.w3.org/2001/xml-events"'
)
LINK = 'xmlns:xlink="http://www.w3.org/1999/xlink"'
ENDLESS_MACRO = "Sub Main\nDo\nLoop\nEnd Sub\n"


@contextmanager
def web_server() -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine: its address, and the paths that were requested."""
    received: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_request(self, *_: Any) -> None:
            received.append(self.path)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()


def endless_macro(extension: str = "odt") -> bytes:
    """A document whose macro starts when it is opened and does not end."""
    listeners = "".join(
        f'<script:event-listener script:language="ooo:script" script:event-name="dom:{event}" xlink:type="simple" '
        'xlink:href="vnd.sun.star.script:Standard.Module1.Main?language=Basic&amp;location=document"/>'
        for event in ("load", "unload", "DOMFocusIn")
    )
    library = 'xmlns:library="http://openoffice.org/2000/library"'
    parts = {
        "Basic/script-lc.xml": f'<library:libraries {library}><library:library library:name="Standard" '
        'library:link="false"/></library:libraries>',
        "Basic/Standard/script-lb.xml": f'<library:library {library} library:name="Standard" library:readonly="false" '
        'library:passwordprotected="false"><library:element library:name="Module1"/></library:library>',
        "Basic/Standard/Module1.xml": '<script:module xmlns:script="http://openoffice.org/2000/script" '
        f'script:name="Module1" script:language="StarBasic">{ENDLESS_MACRO}</script:module>',
    }
    scripts = f"<office:scripts {SCRIPT} {LINK}><office:event-listeners>{listeners}</office:event-listeners>"
    return office_files.open_document(extension, "a macro", before=f"{scripts}</office:scripts>", parts=parts)


def references(address: str, folder: Path) -> dict[str, bytes]:
    """Files of every format that refer to other hosts: pictures, sections, templates and formulas."""
    image = (
        f'<draw:frame {LINK} svg:width="5cm" svg:height="5cm" svg:x="1cm" svg:y="1cm"><draw:image '
        f'xlink:href="{address}/{{}}.png" xlink:type="simple" xlink:actuate="onLoad"/></draw:frame>'
    )
    section = (
        f'<text:section {LINK} text:name="s"><text:section-source xlink:href="{address}/section.odt"/></text:section>'
    )
    formula = (
        f'<table:table-cell table:formula="of:=WEBSERVICE(&quot;{address}/ods-formula&quot;)"/>'
        f"<table:table-cell>{image.format('ods')}</table:table-cell>"
    )
    d = "http://schemas.openxmlformats.org/drawingml/2006"
    picture = (
        f'<w:p><w:r><w:drawing><wp:inline xmlns:wp="{d}/wordprocessingDrawing" xmlns:a="{d}/main" '
        f'xmlns:pic="{d}/picture"><wp:extent cx="999999" cy="999999"/><wp:docPr id="1" name="1"/><a:graphic>'
        f'<a:graphicData uri="{d}/picture"><pic:pic><pic:nvPicPr><pic:cNvPr id="1" name="1"/><pic:cNvPicPr/>'
        '</pic:nvPicPr><pic:blipFill><a:blip r:link="rId9"/><a:stretch><a:fillRect/></a:stretch></pic:blipFill>'
        '<pic:spPr><a:xfrm><a:off x="0" y="0"/><a:ext cx="999999" cy="999999"/></a:xfrm><a:prstGeom prst="rect"/>'
        "</pic:spPr></pic:pic></a:graphicData></a:graphic></wp:inline></w:drawing></w:r></w:p>"
    )  # fmt: skip
    relationship = f'<Relationship Id="rId{{}}" Type="{R}/{{}}" Target="{address}/docx-{{}}" TargetMode="External"/>'
    links = "".join(relationship.format(n, kind, kind) for n, kind in ((9, "image"), (8, "attachedTemplate")))
    slides = office_files.open_document("odp", "links", image.format("odp"))
    field = rf'{{\field{{\*\fldinst {{ INCLUDEPICTURE "{address}/rtf.png" \\* MERGEFORMAT \\d}}}}{{\fldrslt x}}}}'
    return {
        "a.docx": docx("links", picture, links),
        "a.odt": office_files.open_document("odt", "links", f"<text:p>{image.format('odt')}</text:p>{section}"),
        "a.odp": slides,
        "a.pptx": office_files.converted(slides, "pptx", folder),
        "a.ods": office_files.open_document("ods", "links", formula),
        "a.xlsx": xlsx("links", f'<c r="B1"><f>WEBSERVICE("{address}/xlsx-formula")</f><v>0</v></c>'),
        "a.rtf": rtf(f"links {field}"),
    }


def bombs() -> dict[str, bytes]:
    """Files that unpack, nest or repeat beyond all measure."""
    entities = "".join(f'<!ENTITY {b} "{f"&{a};" * 50}">' for a, b in zip("abcdefg", "bcdefgh", strict=True))
    laughs = f'<?xml version="1.0"?>{DTD.format(first="ha " * 50, entities=entities)}<w:document xmlns:w="{W}"><w:body>'
    laughs += "<w:p><w:r><w:t>&h;</w:t></w:r></w:p></w:body></w:document>"
    nested = "<w:tbl><w:tr><w:tc><w:p/>" * 3000 + "</w:tc></w:tr></w:tbl>" * 3000
    zeros = zipped({"word/document.xml": bytes(300_000_000)})
    lines = "".join(f"<w:p><w:r><w:t>{n * 7919 % 10**9:09d} line</w:t></w:r></w:p>" for n in range(300_000))
    kind = f"{office_files.TYPE}.wordprocessingml.document.main+xml"
    return {
        "laughs.docx": open_xml("word/document.xml", kind, {"word/document.xml": laughs}),
        "nested.docx": docx("nested tables", nested),
        "zeros.docx": zeros,
        "long.docx": docx("300,000 lines", lines),
        "wide.xlsx": xlsx("far corner", '</row><row r="1048576"><c r="XFD1048576"><v>1</v></c>'),
        "groups.rtf": rb"{\rtf1 " + b"{" * 1_000_000 + b"text" + b"}" * 1_000_000 + b"}",
        "repeated.ods": office_files.open_document(
            "ods", "x", '<table:table-cell table:number-columns-repeated="16000" office:value-type="float" '
            'office:value="1"><text:p>1</text:p></table:table-cell></table:table-row><table:table-row '
            'table:number-rows-repeated="1000000"><table:table-cell table:number-columns-repeated="16000" '
            'office:value-type="float" office:value="1"><text:p>1</text:p></table:table-cell>'
        ),
    }  # fmt: skip
