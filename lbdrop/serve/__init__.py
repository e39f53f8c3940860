"""A recommender as an HTTP service with a page; ``lbdrop recommend serve MODEL`` runs it."""

from lbdrop.errors import DropoutError

try:
    from lbdrop.serve.app import Limits as Limits
    from lbdrop.serve.app import create_app as create_app
    from lbdrop.serve.catalogue import read_titles as read_titles
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("lbdrop"):
        raise
    raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[serve]'") from error
