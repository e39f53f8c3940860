"""The command line: one verb per file, each a thin shell over a function that can be imported."""

import typer

from lbdrop.cli import data, demo, doctor, rates, recommend, report, reproduce

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Learned Bernoulli dropout for PyTorch. Begin with lbdrop demo; TAB completes after lbdrop --install-completion.",
)
app.command()(demo.demo)
app.command()(report.report)
app.command()(rates.rates)
app.command()(doctor.doctor)
app.add_typer(recommend.app, name="recommend")
app.add_typer(data.app, name="data")
app.add_typer(reproduce.app, name="reproduce")
