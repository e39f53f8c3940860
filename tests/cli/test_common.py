"""How commands end."""

import pytest
import typer

from lbdrop.cli.common import one_line_errors
from lbdrop.recommend.train.fit import Interrupted


@pytest.mark.parametrize(
    ("error", "words"),
    [(KeyboardInterrupt(), "stopped"), (Interrupted("stopped in epoch 3; runs holds epoch 2"), "runs holds epoch 2")],
)
def test_interrupted_command_shows_what_is_kept(
    error: KeyboardInterrupt, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as end, one_line_errors():
        raise error
    assert end.value.exit_code == 130
    assert words in capsys.readouterr().err
