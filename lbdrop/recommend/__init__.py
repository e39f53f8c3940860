"""Recommenders from interactions: data, one variational autoencoder with learned dropout, its rivals, and what they find."""

from lbdrop.errors import DropoutError

try:
    from lbdrop.recommend.data.interactions import Interactions as Interactions
    from lbdrop.recommend.data.rows import Batch as Batch
    from lbdrop.recommend.data.rows import Rows as Rows
    from lbdrop.recommend.data.splits import HeldOut as HeldOut
    from lbdrop.recommend.data.splits import Split as Split
    from lbdrop.recommend.data.splits import split_by_time as split_by_time
    from lbdrop.recommend.data.splits import split_users as split_users
    from lbdrop.recommend.linear.methods import EASE as EASE
    from lbdrop.recommend.linear.methods import EDLAE as EDLAE
    from lbdrop.recommend.linear.methods import IALS as IALS
    from lbdrop.recommend.linear.methods import SLIM as SLIM
    from lbdrop.recommend.linear.methods import WMF as WMF
    from lbdrop.recommend.linear.methods import Blend as Blend
    from lbdrop.recommend.linear.methods import Popularity as Popularity
    from lbdrop.recommend.model.settings import METHODS as METHODS
    from lbdrop.recommend.model.settings import Settings as Settings
    from lbdrop.recommend.model.settings import method as method
    from lbdrop.recommend.model.vae import VAE as VAE
    from lbdrop.recommend.recommender import Recommender as Recommender
    from lbdrop.recommend.train.evaluate import Report as Report
    from lbdrop.recommend.train.evaluate import Scorer as Scorer
    from lbdrop.recommend.train.evaluate import evaluate as evaluate
    from lbdrop.recommend.train.fit import History as History
    from lbdrop.recommend.train.fit import fit as fit
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("lbdrop"):
        raise
    raise DropoutError(f"{error.name}: package not found; pip install 'lbdrop[recommend]'") from error
