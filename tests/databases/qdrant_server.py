"""A Qdrant server for tests: the part of the HTTP interface that an index uses, answered by Qdrant's engine in process.

The engine is `qdrant-edge-py`. Requests are validated against Qdrant's OpenAPI description if the environment variable
`QDRANT_OPENAPI` has the path of one (`docs/redoc/master/openapi.json` of github.com/qdrant/qdrant).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import qdrant_edge as edge
from qdrant_client import QdrantClient, models

POINT = r"/collections/([^/]+)"
DISTANCES = {"Dot": edge.Distance.Dot, "Cosine": edge.Distance.Cosine}
TYPES = {"float32": "Float32", "float16": "Float16", "uint8": "Uint8"}
SCHEMAS = {"keyword": "Keyword", "integer": "Integer", "float": "Float", "bool": "Bool", "datetime": "Datetime"}


class EdgeServer:
    """Collections in shards of the engine; `requests` has all requests, `problems` those that are invalid.

    The engine takes 0.3 seconds for each payload index, so they are created when a facet needs them unless `indexes`.
    """

    def __init__(self, folder: Path, key: str | None = None, version: str = "1.20.0", indexes: bool = False) -> None:
        self.folder, self.key, self.version, self.indexes = folder, key, version, indexes
        self.schemas: dict[tuple[str, str], edge.PayloadSchemaType] = {}
        self.shards: dict[str, edge.EdgeShard] = {}
        self.aliases: dict[str, str] = {}
        self.vectors: dict[str, dict] = {}
        self.lock = threading.RLock()
        self.requests: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self.failures: list[str] = []
        self.largest = 0
        self.before: Callable[[str, str], None] = lambda method, path: None  # called before each request
        description = os.environ.get("QDRANT_OPENAPI")
        self.validator = None if not description else Description(json.loads(Path(description).read_text()))

    def shard(self, name: str) -> edge.EdgeShard:
        name = self.aliases.get(name, name)
        if name not in self.shards:
            raise LookupError(f"Not found: Collection `{name}` doesn't exist!")
        return self.shards[name]

    def handle(self, method: str, path: str, body: dict) -> object:
        for verb, pattern, function in ROUTES:
            if verb == method and (match := re.fullmatch(pattern, path)):
                return function(self, *map(unquote, match.groups()), body)
        raise NotImplementedError(f"{method} {path}")

    def root(self, _body):
        return {"title": "qdrant", "version": self.version}

    def list_collections(self, _body):
        return {"collections": [{"name": name} for name in self.shards]}

    def create(self, name, body):
        texts = {
            n: edge.EdgeSparseVectorParams(modifier=edge.Modifier.Idf if p.get("modifier") == "idf" else None)
            for n, p in (body.get("sparse_vectors") or {}).items()
        }
        folder = self.folder / name
        folder.mkdir(parents=True)
        optimizers = edge.EdgeOptimizersConfig(default_segment_number=1)
        config = edge.EdgeConfig(
            {n: vector_params(p) for n, p in body["vectors"].items()}, texts, optimizers=optimizers
        )
        self.vectors[name] = body["vectors"]
        self.shards[name] = edge.EdgeShard.create(str(folder), config)
        return True

    def describe(self, name, _body):
        config = {
            "params": {"vectors": self.vectors[self.aliases.get(name, name)]},
            "hnsw_config": {"m": 16, "ef_construct": 100, "full_scan_threshold": 10_000},
            "optimizer_config": {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000,
                                 "default_segment_number": 0, "flush_interval_sec": 5},
            "wal_config": {"wal_capacity_mb": 32, "wal_segments_ahead": 0},
        }  # fmt: skip
        return {
            "status": "green",
            "optimizer_status": "ok",
            "segments_count": 1,
            "config": config,
            "payload_schema": {},
        }

    def delete_collection(self, name, _body):
        self.shard(name)
        self.shards.pop(name).close()
        shutil.rmtree(self.folder / name)
        return True

    def list_aliases(self, _body):
        return {"aliases": [{"alias_name": a, "collection_name": c} for a, c in self.aliases.items()]}

    def change_aliases(self, body):
        for action in body["actions"]:
            if "create_alias" in action:
                self.aliases[action["create_alias"]["alias_name"]] = action["create_alias"]["collection_name"]
            else:
                del self.aliases[action["delete_alias"]["alias_name"]]
        return True

    def create_index(self, name, body):
        key = self.aliases.get(name, name), body["field_name"]
        self.schemas[key] = getattr(edge.PayloadSchemaType, SCHEMAS[body["field_schema"]])
        if self.indexes:
            self.build_index(*key)
        return DONE

    def build_index(self, name, field):
        schema = self.schemas.pop((self.aliases.get(name, name), field), None)
        if schema is not None:
            self.shard(name).update(edge.UpdateOperation.create_field_index(field, schema))

    def upsert(self, name, body):
        points = [edge.Point(p["id"], vectors_in(p["vector"]), p.get("payload")) for p in body["points"]]
        operation = edge.UpdateOperation.upsert_points(points, filter_in(body.get("update_filter"), self.shard(name)))
        self.shard(name).update(operation)
        return DONE

    def retrieve(self, name, body):
        records = self.shard(name).retrieve(body["ids"], body["with_payload"], body["with_vector"])
        return [record_out(record) for record in records]

    def scroll(self, name, body):
        request = edge.ScrollRequest(
            body.get("offset"), body["limit"], filter_in(body.get("filter"), self.shard(name)), body["with_payload"],
            body["with_vector"],
        )  # fmt: skip
        records, following = self.shard(name).scroll(request)
        return {"points": [record_out(r) for r in records], "next_page_offset": identity_out(following)}  # fmt: skip

    def count(self, name, body):
        return {
            "count": self.shard(name).count(edge.CountRequest(True, filter_in(body.get("filter"), self.shard(name))))
        }

    def facet(self, name, body):
        self.build_index(name, body["key"])
        request = edge.FacetRequest(body["key"], body["limit"], True, filter_in(body.get("filter"), self.shard(name)))
        return {"hits": [{"value": h.value, "count": h.count} for h in self.shard(name).facet(request).hits]}

    def query(self, name, body):
        using, params = body.get("using"), params_in(body.get("params"))
        first = body.get("prefetch")
        prefetches = [
            edge.Prefetch(
                p["limit"],
                query_in(p["query"], p.get("using")),
                None,
                params_in(p.get("params")),
                filter_in(p.get("filter"), self.shard(name)),
            )
            for p in ([first] if isinstance(first, dict) else first or [])
        ]
        request = edge.QueryRequest(
            body["limit"], None, query_in(body["query"], using), prefetches or None, False,
            body.get("with_payload", False), filter_in(body.get("filter"), self.shard(name)), None, params,
        )  # fmt: skip
        points = self.shard(name).query(request)
        return {"points": [{"version": 0, "score": p.score, **record_out(p)} for p in points]}

    def set_payload(self, name, body):
        if body.get("filter") is not None:
            operation = edge.UpdateOperation.set_payload_by_filter(
                filter_in(body["filter"], self.shard(name)), body["payload"]
            )
        else:
            operation = edge.UpdateOperation.set_payload(body["points"], body["payload"])
        self.shard(name).update(operation)
        return DONE

    def delete(self, name, body):
        self.shard(name).update(
            edge.UpdateOperation.delete_points_by_filter(filter_in(body["filter"], self.shard(name)))
        )
        return DONE

    def batch(self, name, body):
        for operation in body["operations"]:
            ((kind, value),) = operation.items()
            if kind == "set_payload":
                self.set_payload(name, value)
            elif kind == "update_vectors":
                vectors = [edge.PointVectors(p["id"], vectors_in(p["vector"])) for p in value["points"]]
                self.shard(name).update(edge.UpdateOperation.update_vectors(vectors))
            else:
                self.shard(name).update(edge.UpdateOperation.delete_vectors(value["points"], value["vector"]))
        return [DONE] * len(body["operations"])

    def telemetry(self, _body):
        collections = []
        for name, shard in self.shards.items():
            shard.flush()
            size = sum(p.stat().st_size for p in (self.folder / name).rglob("*") if p.is_file())
            segment = {"info": {"disk_usage_bytes": 0, "vectors_size_bytes": size, "payloads_size_bytes": 0}}
            collections.append({"id": name, "shards": [{"id": 0, "local": {"segments": [segment]}}]})
        return {"collections": {"collections": collections}}


DONE = {"operation_id": 1, "status": "completed"}
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/", EdgeServer.root),
    ("GET", "/collections", EdgeServer.list_collections),
    ("POST", "/collections/aliases", EdgeServer.change_aliases),
    ("GET", "/aliases", EdgeServer.list_aliases),
    ("GET", "/telemetry", EdgeServer.telemetry),
    ("GET", POINT, EdgeServer.describe),
    ("PUT", POINT, EdgeServer.create),
    ("DELETE", POINT, EdgeServer.delete_collection),
    ("PUT", f"{POINT}/index", EdgeServer.create_index),
    ("PUT", f"{POINT}/points", EdgeServer.upsert),
    ("POST", f"{POINT}/points", EdgeServer.retrieve),
    ("POST", f"{POINT}/points/scroll", EdgeServer.scroll),
    ("POST", f"{POINT}/points/count", EdgeServer.count),
    ("POST", f"{POINT}/facet", EdgeServer.facet),
    ("POST", f"{POINT}/points/query", EdgeServer.query),
    ("POST", f"{POINT}/points/payload", EdgeServer.set_payload),
    ("POST", f"{POINT}/points/delete", EdgeServer.delete),
    ("POST", f"{POINT}/points/batch", EdgeServer.batch),
]


def vector_params(body):
    """The configuration of a named vector."""
    quantization = body.get("quantization_config") or {}
    config: Any = None
    if "scalar" in quantization:
        config = edge.ScalarQuantizationConfig(edge.ScalarType.Int8, quantization["scalar"]["quantile"], True)
    elif "turbo" in quantization:
        bits = quantization["turbo"]["bits"].removeprefix("bits")
        config = edge.TurboQuantQuantizationConfig(always_ram=True, bits=getattr(edge.TurboQuantBitSize, f"Bits{bits}"))
    multi = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if body.get("multivector_config") else None
    plain = edge.HnswIndexConfig(0, 100, 10_000) if (body.get("hnsw_config") or {}).get("m") == 0 else None
    datatype = getattr(edge.VectorStorageDatatype, TYPES[body.get("datatype") or "float32"])
    return edge.EdgeVectorParams(
        body["size"], DISTANCES[body["distance"]], body.get("on_disk"), multi, datatype, config, plain
    )


def vectors_in(vectors):
    """Named vectors of a request."""
    return {name: vector_in(vector) for name, vector in vectors.items()}


def vector_in(vector):
    """A dense, multi- or sparse vector of a request."""
    return edge.SparseVector(vector["indices"], vector["values"]) if isinstance(vector, dict) else vector


def query_in(query, using):
    """A nearest query."""
    vector = query.get("nearest", query) if isinstance(query, dict) else query
    return edge.Query.Nearest(vector_in(vector), using)


def params_in(params):
    """Search parameters."""
    quantization = (params or {}).get("quantization")
    options = None
    if quantization:
        options = edge.QuantizationSearchParams(False, quantization["rescore"], quantization["oversampling"])
    return None if params is None else edge.SearchParams(exact=bool(params.get("exact")), quantization=options)


def filter_in(body, shard):
    """A filter of a request."""
    if body is None:
        return None
    must, should, must_not = (
        [condition_in(c, shard) for c in body.get(name) or []] or None for name in ("must", "should", "must_not")
    )
    return edge.Filter(must=must, should=should, must_not=must_not)


def with_boolean(shard, path, value):
    """A condition on a boolean, which the Python interface of the engine takes for a number: a list of points."""
    keys = [key.strip('"') for key in re.findall(r'"[^"]*"|[^."]+', path)]
    records, _ = shard.scroll(edge.ScrollRequest(None, 100_000, None, True, False))
    return edge.HasIdCondition(
        {r.id for r in records if reduce(lambda v, k: (v or {}).get(k), keys, r.payload) is value}
    )


def condition_in(body, shard):
    """A condition of a filter."""
    if "has_id" in body:
        return edge.HasIdCondition(set(body["has_id"]))
    if "is_empty" in body and "key" not in body:
        return edge.IsEmptyCondition(body["is_empty"]["key"])
    if "has_vector" in body:
        return edge.HasVectorCondition(body["has_vector"])
    if "key" not in body:
        return filter_in(body, shard)
    if (match := body.get("match")) is not None:
        if isinstance(match.get("value"), bool):
            return with_boolean(shard, body["key"], match["value"])
        value = edge.MatchAny(match["any"]) if "any" in match else edge.MatchValue(match["value"])
        return edge.FieldCondition(body["key"], match=value)
    bounds = {name: bound for name, bound in body["range"].items() if bound is not None}
    dates = any(isinstance(bound, str) for bound in bounds.values())
    return edge.FieldCondition(body["key"], range=(edge.RangeDateTime if dates else edge.RangeFloat)(**bounds))


def record_out(record):
    """A point of an answer."""
    vectors = record.vector
    if isinstance(vectors, dict):
        vectors = {name: vector_out(vector) for name, vector in vectors.items()}
    return {"id": identity_out(record.id), "payload": record.payload, "vector": vectors}


def identity_out(identity):
    """The id of a point; None at the end of a scroll."""
    return identity if identity is None or isinstance(identity, int) else str(identity)


def vector_out(vector):
    """A vector of an answer."""
    if isinstance(vector, edge.SparseVector):
        return {"indices": vector.indices, "values": vector.values}
    return vector


class Description:
    """Validates requests against an OpenAPI description."""

    def __init__(self, description):
        from referencing import Registry
        from referencing.jsonschema import DRAFT202012

        self.paths = [
            (re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path)), path, item) for path, item in description["paths"].items()
        ]
        self.paths.sort(key=lambda path: path[1].count("{"))
        schemas = nullable(description)
        self.registry = Registry().with_resource("qdrant", DRAFT202012.create_resource(schemas))
        self.validators = {}

    def problem(self, method, path, query, body):
        """Return what is invalid in a request; None if nothing is."""
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

        for pattern, name, item in self.paths:  # noqa: B007
            if pattern.fullmatch(path) and method.lower() in item:
                operation = item[method.lower()]
                break
        else:
            return f"{method} {path} does not exist"
        known = {p["name"] for p in operation.get("parameters", []) if p["in"] == "query"}
        if unknown := [
            part.partition("=")[0] for part in query.split("&") if part and part.partition("=")[0] not in known
        ]:
            return f"{method} {name}: unknown parameters {unknown}"
        if "requestBody" not in operation or body is None:
            return None
        key = method, name
        if key not in self.validators:
            escaped = name.replace("~", "~0").replace("/", "~1")
            reference = f"qdrant#/paths/{escaped}/{method.lower()}/requestBody/content/application~1json/schema"
            self.validators[key] = Draft202012Validator({"$ref": reference}, registry=self.registry)
        error = next(self.validators[key].iter_errors(shortened(body)), None)
        return None if error is None else f"{method} {name}: {error.message[:300]}"


def shortened(value):
    """A request with the beginning of its vectors, which makes its validation fast."""
    if isinstance(value, dict):
        return {name: shortened(part) for name, part in value.items()}
    return [shortened(part) for part in value[:8]] if isinstance(value, list) else value


def nullable(schema):
    """Rewrite `nullable` of OpenAPI 3.0 for JSON Schema; unknown properties are errors where all are listed."""
    if isinstance(schema, list):
        return [nullable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {name: nullable(part) for name, part in schema.items() if name != "nullable"}
    if schema.get("type") == "object" and "properties" in schema and "additionalProperties" not in schema:
        changed["additionalProperties"] = False
    return {"anyOf": [changed, {"type": "null"}]} if schema.get("nullable") is True else changed


@contextmanager
def serving(server: EdgeServer):
    """Answer requests on a free port of the loopback interface; yields the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet per answer
        disable_nagle_algorithm = True

        def answer(self):
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            server.largest = max(server.largest, len(data))
            parts = urlsplit(self.path)
            if server.key is not None and self.headers.get("api-key") != server.key:
                return self.reply(401, {"status": {"error": "Must provide an API key"}})
            body = json.loads(data) if data else None
            with server.lock:
                server.requests.append((self.command, parts.path))
                server.before(self.command, parts.path)
                if server.validator is not None:
                    problem = server.validator.problem(self.command, parts.path, parts.query, body)
                    if problem is not None:
                        server.problems.append(problem)
                try:
                    result = server.handle(self.command, parts.path, body or {})
                except LookupError as error:
                    return self.reply(404, {"status": {"error": str(error)}})
                except Exception as error:
                    server.failures.append(f"{self.command} {parts.path}: {type(error).__name__}: {error}")
                    return self.reply(400, {"status": {"error": f"{type(error).__name__}: {error}"}})
            return self.reply(200, result if parts.path == "/" else {"result": result, "status": "ok", "time": 0.0})

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = answer  # noqa: N815

        def reply(self, status, body):
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            self.wfile.flush()

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    setattr(http, "handle_error", lambda *_: None)  # noqa: B010 - clients that are killed
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield http.server_address[1]
    finally:
        http.shutdown()
        http.server_close()


@contextmanager
def running(**options):
    """A server with its collections in memory; yields it and the URL of an index."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        server = EdgeServer(Path(folder), **options)
        with serving(server) as port:
            yield server, f"qdrant://127.0.0.1:{port}/pages"
        for shard in server.shards.values():
            shard.close()


def full_collection(address: str, dim: int) -> QdrantClient:
    """Return a client of a server with a new collection `full` of multi-vectors `colpali`."""
    client = QdrantClient(address, check_compatibility=False)
    vector = models.VectorParams(
        size=dim, distance=models.Distance.DOT,
        multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
    )  # fmt: skip
    client.create_collection("full", vectors_config={"colpali": vector})
    return client
