"""What a descriptor was of -> words for a person: a service by its port, a file by its name."""

from __future__ import annotations

import re

# Ports by which programs know a service, as IANA's registry has them or, where that has none, its own documentation.
_SERVICES = {
    53: "DNS",
    80: "HTTP",
    443: "HTTPS",
    1433: "SQL Server",
    1521: "Oracle",
    2181: "ZooKeeper",
    2379: "etcd",
    3306: "MySQL",
    4222: "NATS",
    5432: "PostgreSQL",
    5672: "AMQP",
    6379: "Redis",
    6432: "PgBouncer",
    9042: "Cassandra",
    9092: "Kafka",
    9200: "Elasticsearch",
    11211: "memcached",
    27017: "MongoDB",
}
# The socket of a service on the same machine is known by its name, too: unix_socket_directories of PostgreSQL ...
_UNIX = (("/.s.PGSQL.", "PostgreSQL"), ("mysql", "MySQL"), ("redis", "Redis"), ("docker.sock", "Docker"))
LISTENING = "listening on "  # so begins what waits for clients
_ADDRESS = re.compile(r"(?:udp )?(?P<address>\[.+\]|[\d.]+):(?P<port>\d+)")


def service_of(name: str) -> str:
    """`PostgreSQL` of `10.0.0.5:5432`; "" where it is not known."""
    found = _ADDRESS.fullmatch(name)
    if found:
        return _SERVICES.get(int(found["port"]), "")
    if name.startswith("unix:"):
        return next((service for part, service in _UNIX if part in name), "")
    return ""


def object_text(name: str) -> str:
    """`10.0.0.5:5432 (PostgreSQL)`."""
    service = service_of(name)
    return f"{name} ({service})" if service else name


def short_text(name: str) -> str:
    """`PostgreSQL`, `10.0.0.5:8080`, the name of a file without its folders, a device's path."""
    if name.startswith(("/dev/", "pipe:", "unix socket")):
        return name
    return service_of(name) or (name.rpartition("/")[2] if "/" in name else name)
