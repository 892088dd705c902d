"""The command `tidelog demo`, which runs demonstrations on real data."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.errors import CommandError

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def demo() -> None:
    """Run a demonstration on real data.

    Examples:

    $ tidelog demo flash-sale
    """


@app.command("flash-sale")
def flash_sale(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            show_default=False,
            help="New or empty directory for all files. Default: a temporary directory.",
            file_okay=False,
        ),
    ] = None,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="Run the Spark pipeline.")] = True,
    orders_per_s: Annotated[
        int, typer.Option("--orders-per-s", min=1, metavar="N", help="Maximum orders per second of one worker.")
    ] = 700,
    expiry: Annotated[
        float, typer.Option("--expiry", min=0.1, metavar="SECONDS", help="Orders expire after this waiting time.")
    ] = 15.0,
    bursts: Annotated[int, typer.Option("--bursts", min=1, metavar="N", help="Orders arrive in N bursts.")] = 3,
    brokers: Annotated[
        int, typer.Option("--brokers", min=1, max=9, metavar="N", help="Use N brokers. If N > 1, one is killed midway.")
    ] = 1,
) -> None:
    """Run a flash sale: 24,697 real orders in bursts. One worker is killed.

    No product is oversold, and no order is decided twice. A separate checker
    verifies this from topics, ledger and Parquet files. The pipeline needs
    PySpark (the pip extra "spark").

    Examples:

    $ tidelog demo flash-sale
    $ tidelog demo flash-sale --no-spark --expiry 5
    $ tidelog demo flash-sale --no-spark --brokers 3
    """
    from rich.console import Console

    from tidelog.demo.stage import Plan, SaleFailed, run
    from tidelog.demo.view import LiveView, summary

    if spark:
        try:
            import pyarrow  # noqa: F401
            import pyspark  # noqa: F401
        except ImportError as error:
            raise CommandError(
                f"the Spark pipeline needs {error.name}: pip install '.[spark]' in a clone of Tidelog,"
                " or use --no-spark"
            ) from None
    target = directory or Path(tempfile.mkdtemp(prefix="tidelog-flash-sale-"))
    if target.exists() and any(target.iterdir()):
        raise CommandError(f"{target} is not empty: choose a new directory")
    console = Console()
    plan = Plan(target.absolute(), spark, orders_per_s, round(expiry * 1000), bursts, brokers=brokers)
    try:
        with LiveView(console) as view:
            result = run(plan, view)
    except SaleFailed as error:
        raise CommandError(str(error)) from None
    except KeyboardInterrupt:
        if directory is None:  # the directory is temporary, and the user does not know its name
            shutil.rmtree(target, ignore_errors=True)
        else:
            print(f"stopped; files: {plan.directory}", file=sys.stderr)
        raise
    summary(console, result, plan.directory, spark=spark)
    if result.verdict["problems"]:
        raise typer.Exit(1)
