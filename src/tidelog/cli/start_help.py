"""The help of `tidelog start`, in a module of its own because `cli/start.py` never imports typer."""

import sys
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def start(
    config: Annotated[
        str, typer.Option(metavar="FILE", show_default=False, help="Settings, one KEY=VALUE per line.")
    ] = "",
    data: Annotated[
        str, typer.Option(metavar="DIR,...", help="Data directories, one or several; created if missing.")
    ] = "./tidelog-data",
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address; port 0 means any free port.")
    ] = "127.0.0.1:9092",
    set: Annotated[
        list[str],
        typer.Option(metavar="KEY=VALUE", show_default=False, help="A setting, by Kafka's name; repeatable."),
    ] = [],  # noqa: B006 - typer copies it
    brokers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default=False,
            help="Run a cluster of N brokers on this machine, each in a process of its own.",
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Lowest level that is logged to stderr: debug, info, warning or error.")
    ] = "info",
    json: Annotated[bool, typer.Option("--json", help="Print the lines on stdout as JSON.")] = False,
) -> None:
    r"""Run a broker, or with --brokers a cluster, in the foreground.

    When the broker accepts connections, it prints one line with its address.
    SIGTERM or Ctrl-C shuts it down cleanly.

    Settings have Kafka's names. Settings in the environment, for example
    TIDELOG_NUM_PARTITIONS for num.partitions, override those in the file.
    Settings on the command line override both.

    With --brokers N, broker i listens on the given port plus i - 1, and has
    its data in DIR/broker-i. The brokers share the metadata store in
    DIR/cluster.sqlite. A broker that dies is started again. The first Ctrl-C
    stops the brokers one after another, the second kills them immediately.
    Topics have three replicas by default (fewer if there are fewer brokers).
    With three replicas, acks=all needs two of them in sync.

    Examples:

    $ tidelog start
    $ tidelog start --listen 127.0.0.1:0 --data /tmp/try
    $ tidelog start --set num.partitions=12 --set log.retention.hours=24
    $ tidelog start --listen 0.0.0.0:9092 \
        --set advertised.listeners=PLAINTEXT://broker1:9092
    $ tidelog start --brokers 3 --data ./cluster
    """
    from tidelog.cli.start import main

    raise typer.Exit(main(sys.argv[2:]))
