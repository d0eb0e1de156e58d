from .attaching import attach as attach
from .attaching import detach as detach
from .base import PromptedRetriever as PromptedRetriever
from .base import Retriever as Retriever
from .causality import CausalBackboneWarning as CausalBackboneWarning
from .checkpoint import BACKBONES as BACKBONES
from .checkpoint import Backbone as Backbone
from .checkpoint import Checkpoint as Checkpoint
from .encoder import PageEncoder as PageEncoder
from .encoder import QueryEncoder as QueryEncoder
from .loading import load as load

DEFAULT_MODEL: str
