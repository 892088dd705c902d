"""Cuts the excerpts of this directory from the original data sets. Run again only if you want other excerpts.

    python examples/pipelines/data/cut.py DIRECTORY

DIRECTORY holds one folder for each data set, with the files as published; ATTRIBUTION.md names their sources. Bytes are
copied as they are, line by line: the dirt of the originals is what the pipelines must cope with.
"""

import csv
import gzip
import io
import json
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent

KAFKA_LOGS = ("server.log.2016-12-19-16", "server.log.2016-12-19-20", "controller.log.2016-12-19-18")
AWS_SERIES = ("ec2_cpu_utilization_24ae8d", "ec2_cpu_utilization_53ea38", "ec2_cpu_utilization_5f5533",
              "rds_cpu_utilization_cc0c53")  # fmt: skip
PRODUCTS = 40
FIRST_SHIPMENTS = 300
FIRST_DAYS = ("2010-12-01", "2010-12-02", "2010-12-03")


def write(name: str, content: bytes) -> None:
    """Write a gzip file that depends on nothing but the content."""
    path = HERE / name
    path.write_bytes(gzip.compress(content, 9, mtime=0))
    print(f"{path.name}: {len(content)} bytes, {path.stat().st_size} compressed")


def lines(path: Path) -> list[bytes]:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).splitlines(keepends=True)


def cut_logs(source: Path) -> None:
    write("apache_access.log.gz", b"".join(lines(source / "apache_access_log/apache_logs.log")[7000:]))
    write("nasa_access.tsv.gz", b"".join(lines(source / "nasa_http_1995/nasa_19950701.tsv")[:4001]))
    write("ssh_auth.log.gz", b"".join(lines(source / "ssh_auth_log/auth.log")))
    for name in KAFKA_LOGS:
        folder = source / "kafka_broker_server_logs/kafka0"
        path = folder / name if (folder / name).exists() else folder / f"{name}.gz"
        # The server log of 20:00 begins within a stack trace here, as a file does that is rotated by size.
        skipped_lines = 1 if name.endswith("19-20") else 0
        write(
            f"kafka_{name.replace('.log', '').replace('.2016-12-19-', '_')}.log.gz",
            b"".join(lines(path)[skipped_lines:]),
        )


def cut_edits(source: Path) -> None:
    edits = lines(source / "wikipedia_edits/wikiticker-2015-09-12.part1.jsonl.gz")[:5000]
    write("wikipedia_edits.jsonl.gz", b"".join(edits))


def cut_retail(source: Path) -> None:
    """Every line of the first days, and later the lines of the products that sold most in those days."""
    days = {path.name[:10]: lines(path) for path in sorted((source / "online_retail_uci/by-day").iterdir())}
    header = days[FIRST_DAYS[0]][0]
    sold: Counter[str] = Counter()
    for day in FIRST_DAYS:
        for row in csv.DictReader(io.StringIO(b"".join(days[day]).decode())):
            if row["StockCode"][:5].isdigit():
                sold[row["StockCode"]] += int(row["Quantity"])
    products = [code for code, _ in sold.most_common(PRODUCTS)]
    later = [
        line
        for day, content in days.items()
        if day not in FIRST_DAYS
        for line in content[1:]
        if line.split(b",")[1].decode() in products
    ]
    first = [line for day in FIRST_DAYS for line in days[day][1:]]
    write("online_retail.csv.gz", b"".join([header, *first, *later]))
    cut_shipments(source, products)


def cut_shipments(source: Path, products: list[str]) -> None:
    """The first shipments, and those delivered in the months of the sales. A line ends with a lone carriage return."""
    original = (source / "scms_shipments/SCMS_Delivery_History.part1.comma.csv").read_bytes()
    rows = original.split(b"\r")
    titles = next(csv.reader([rows[0].decode("utf-8-sig")]))
    delivered, item = titles.index("Delivered to Client Date"), titles.index("Item Description")
    months = ("Dec-10", "Jan-11", "Feb-11", "Mar-11")
    first, other = rows[1 : FIRST_SHIPMENTS + 1], rows[FIRST_SHIPMENTS + 1 :]
    kept = [row for row in other if row and next(csv.reader([row.decode()]))[delivered].endswith(months)]
    write("scms_shipments.csv.gz", b"\r".join([rows[0], *first, *kept, b""]))
    items = Counter(next(csv.reader([row.decode()]))[item] for row in kept)
    # The products of the shop have nothing to do with the items of the shipments: this table is invented.
    pairs = zip(products, (name for name, _ in items.most_common()), strict=False)
    with (HERE / "catalogue.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["stock_code", "item", "packs_per_unit"])
        writer.writerows([code, name, 50] for code, name in pairs)


def cut_metrics(source: Path) -> None:
    nab = source / "nab_metrics_iot"
    paths = [*sorted((nab / "realTraffic").iterdir()), *(nab / f"realAWSCloudwatch/{name}.csv" for name in AWS_SERIES)]
    series = [b"series,timestamp,value\n"]
    for path in paths:
        name = f"{path.parent.name}/{path.stem}".encode()
        series += [name + b"," + line.rstrip() + b"\n" for line in lines(path)[1:]]
    write("nab_series.csv.gz", b"".join(series))
    labels = json.loads((nab / "labels_combined_windows.json").read_text())
    selected = {f"{path.parent.name}/{path.stem}": labels[f"{path.parent.name}/{path.name}"] for path in paths}
    (HERE / "nab_labels.json").write_text(json.dumps(selected, indent=1) + "\n")
    write("occupancy.txt.gz", b"".join(lines(source / "occupancy_iot/datatest.txt")))


def main(source: Path) -> None:
    cut_logs(source)
    cut_edits(source)
    cut_retail(source)
    cut_metrics(source)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
