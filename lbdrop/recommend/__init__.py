"""Recommenders from interactions: data, one variational autoencoder with learned dropout, its rivals, and what they find."""

from lbdrop.errors import DropoutError

try:
    from lbdrop.recommend.evaluate import Report as Report
    from lbdrop.recommend.evaluate import Scorer as Scorer
    from lbdrop.recommend.evaluate import evaluate as evaluate
    from lbdrop.recommend.interactions import Interactions as Interactions
    from lbdrop.recommend.linear import EASE as EASE
    from lbdrop.recommend.linear import IALS as IALS
    from lbdrop.recommend.linear import SLIM as SLIM
    from lbdrop.recommend.linear import WMF as WMF
    from lbdrop.recommend.linear import Popularity as Popularity
    from lbdrop.recommend.model import Recommender as Recommender
    from lbdrop.recommend.rows import Batch as Batch
    from lbdrop.recommend.rows import Rows as Rows
    from lbdrop.recommend.settings import METHODS as METHODS
    from lbdrop.recommend.settings import Settings as Settings
    from lbdrop.recommend.settings import method as method
    from lbdrop.recommend.splits import HeldOut as HeldOut
    from lbdrop.recommend.splits import Split as Split
    from lbdrop.recommend.splits import split_users as split_users
    from lbdrop.recommend.train import History as History
    from lbdrop.recommend.train import fit as fit
    from lbdrop.recommend.vae import VAE as VAE
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("lbdrop"):
        raise
    raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[recommend]'") from error
