"""The command `heed`: one verb per file, each an ordinary typed function.

A verb imports the room it calls when it is called, not before: torch takes seconds to import, and
`heed --help` needs none of it.

Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted, 143 pre-empted; a training that was
stopped has saved everything.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from heed import __version__
from heed.cli import compare, convert, demo, evaluate, predict, show, train
from heed.cli import list as listing
from heed.cli.options import safe
from heed.errors import HeedError
from heed.events import Stopped

app = typer.Typer(
    name="heed",
    help="Attention in neural networks: every mechanism behind one interface.",
    epilog=demo.EXAMPLES.splitlines()[0] + "\n\n" + train.EXAMPLES.splitlines()[0],
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (demo, train, evaluate, predict, show, compare, convert):
    app.command(verb.__name__.rpartition(".")[2], epilog=verb.EXAMPLES)(verb.run)
app.command("list", epilog=listing.EXAMPLES)(listing.run)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Without a verb: the version, or the help."""
    if show:
        print(f"heed {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), nl=False)


def main() -> None:
    """Run the command; an error becomes one line and an exit code."""
    sys.exit(_status())


def _status() -> int:
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except Stopped as stopped:
        _complain(str(stopped))
        return stopped.code
    except HeedError as error:
        return _complain(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a place that cannot be written, a disk that is full
        _complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        return 1 if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else 2
    except Exception as error:
        full = _no_memory(error)
        if full:
            _complain(full)
            return 1
        # A misspelt option and the like: typer's own errors, whichever click they come from.
        if not hasattr(error, "format_message"):
            raise
        return _complain(error.format_message())
    return code if isinstance(code, int) else 0


def _no_memory(error: Exception) -> str:
    """The message for memory that ran out; "" for any other error."""
    if "torch" not in sys.modules:
        return ""
    from heed.running.devices import no_memory

    full = no_memory(error)
    return full and f"{full}; take smaller batches, shorter texts or a smaller model"


def _complain(message: str) -> int:
    """Print an error in one line."""
    print(f"heed: {safe(message)}", file=sys.stderr)
    return 2
