"""Learned Bernoulli dropout for PyTorch. This file is the map: every public name, in the order one meets them."""

from lbdrop import estimators as estimators
from lbdrop import masks as masks
from lbdrop.bake import bake as bake
from lbdrop.balanced import Balanced as Balanced
from lbdrop.convert import convert as convert
from lbdrop.dropout import LearnableDropout as LearnableDropout
from lbdrop.errors import DropoutError as DropoutError
from lbdrop.objective import Objective as Objective
from lbdrop.objective import parameter_groups as parameter_groups
from lbdrop.predict import Predictive as Predictive
from lbdrop.predict import predict as predict
from lbdrop.prune import prune as prune
from lbdrop.rivals import ConcreteDropout as ConcreteDropout
from lbdrop.rivals import FixedDropout as FixedDropout
from lbdrop.rivals import GaussianDropout as GaussianDropout
from lbdrop.rivals import RegularDropout as RegularDropout
from lbdrop.rules import Bound as Bound
from lbdrop.rules import Rule as Rule
from lbdrop.selftuning import SelfTuning as SelfTuning
