"""`tidelog demo`: shows what Tidelog is for, on real data."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tidelog.cli.errors import CommandError

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def demo() -> None:
    """Demonstrations on real data.

    $ tidelog demo flash-sale
    """


@app.command("flash-sale")
def flash_sale(
    directory: Annotated[
        Path | None, typer.Option(help="Where its files go; a new temporary directory by default.", file_okay=False)
    ] = None,
    spark: Annotated[bool, typer.Option(help="Run the pipeline; needs the extra spark.")] = True,
    orders_per_s: Annotated[int, typer.Option(min=1, help="What one worker may do a second.")] = 700,
    expiry: Annotated[float, typer.Option(min=0.1, help="Seconds after which an order is dropped.")] = 15.0,
    bursts: Annotated[int, typer.Option(min=1, help="In how many bursts the orders come.")] = 3,
) -> None:
    """Run a flash sale: 24,700 real orders in bursts, two workers, one of them killed.

    Nothing is oversold or decided twice; a checker that reads topics, ledger and Parquet itself says so.

    $ tidelog demo flash-sale
    $ tidelog demo flash-sale --no-spark --expiry 5
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
                f"the pipeline needs {error.name}: pip install 'tidelog[spark]', or leave it out with --no-spark"
            ) from None
    where = directory or Path(tempfile.mkdtemp(prefix="tidelog-flash-sale-"))
    if where.exists() and any(where.iterdir()):
        raise CommandError(f"{where} is not empty: name a new directory")
    console = Console()
    plan = Plan(where.absolute(), spark, orders_per_s, round(expiry * 1000), bursts)
    try:
        with LiveView(console) as view:
            result = run(plan, view.show)
    except SaleFailed as error:
        raise CommandError(str(error)) from None
    summary(console, result, plan.directory, spark=spark)
    if result.verdict["problems"]:
        raise typer.Exit(1)
