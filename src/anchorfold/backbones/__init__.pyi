from .base import CausalBackboneWarning as CausalBackboneWarning
from .base import PromptedRetriever as PromptedRetriever
from .base import Retriever as Retriever
from .checkpoint import BACKBONES as BACKBONES
from .checkpoint import Backbone as Backbone
from .checkpoint import Checkpoint as Checkpoint
from .encoder import PageEncoder as PageEncoder
from .encoder import QueryEncoder as QueryEncoder
from .loading import load as load
from .multivector import attach as attach
from .multivector import detach as detach

DEFAULT_MODEL: str
