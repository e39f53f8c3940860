"""A recommender as an HTTP service with a page; ``lbdrop recommend serve MODEL`` runs it."""

from lbdrop.errors import needs_extra

with needs_extra("serve"):
    from lbdrop.recommend.data.table_files import read_titles as read_titles
    from lbdrop.serve.app import Limits as Limits
    from lbdrop.serve.app import create_app as create_app
