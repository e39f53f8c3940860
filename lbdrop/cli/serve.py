"""``lbdrop recommend serve``: a fitted recommender over HTTP, with a page to try it."""

import ipaddress
import logging
import socket
from pathlib import Path
from typing import Annotated

import typer

from lbdrop.cli.common import say
from lbdrop.errors import DropoutError, needs_extra

__all__ = ["serve"]


def serve(
    model: Annotated[Path, typer.Argument(help="Folder of a fitted model.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets everybody in who can reach this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any that is free.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Another name to be asked under, as a proxy passes it on. At an address of this machine alone the service"
            " answers as localhost and under these; at any other, under every name unless told."
        ),
    ] = None,
    titles: Annotated[
        Path | None, typer.Option(help="CSV or Parquet with item_id and title; items go by their ids without it.")
    ] = None,
    threads: Annotated[
        int,
        typer.Option(min=1, help="Threads of a forward pass; with more than one, last digits may depend on its size."),
    ] = 1,
) -> None:
    """Serve a fitted model over HTTP: a page at /, answers in JSON, and /openapi.json to say how to ask.

    Example:

        lbdrop recommend serve model --titles items.csv
    """
    # Only now: other commands need neither the time nor the packages.
    import torch

    from lbdrop.recommend.recommender import Recommender
    from lbdrop.serve import create_app, read_titles

    with needs_extra("serve"):
        import uvicorn

        from lbdrop.serve.connections import BACKLOG, LogLimit, bounded_connections, descriptors_for_connections
        from lbdrop.serve.middleware import SECURITY_HEADERS
    torch.set_num_threads(threads)
    with listening(host, port) as at:
        named = None if titles is None else read_titles(titles)
        fitted = Recommender.load(model)
        app = create_app(fitted, named, hosts=names(at.getsockname()[0], allow_host or []))
        where = f"[{host}]" if ":" in host else host
        say(f"{fitted} at http://{where}:{at.getsockname()[1]}/ (Ctrl-C stops)")
        config = uvicorn.Config(
            app,
            http=bounded_connections(descriptors_for_connections(), SECURITY_HEADERS),
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=30,
            server_header=False,
            backlog=BACKLOG,
        )
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(LogLimit())
        try:
            uvicorn.Server(config).run(sockets=[at])
        except KeyboardInterrupt:  # raised again by uvicorn when all that was asked has been answered
            say("stopped")


def names(address: str, also: list[str]) -> list[str] | None:
    """The names to answer under: of this machine where only it can ask, so that no web page can under a name of its own."""
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return ["localhost", "127.0.0.1", "::1", address, *also]
    return also or None


def listening(host: str, port: int) -> socket.socket:
    """A socket of this address, before the work of loading a model; nobody is let in until the server listens."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as after a restart, when old connections linger
        bound.bind(address)
        return bound
    except OSError as error:
        if bound is not None:
            bound.close()
        reason = error.strerror or error
        raise DropoutError(f"cannot listen at {host}:{port}: {reason}; choose another --port or --host") from error
