from .base import BackboneEncoder as BackboneEncoder
from .base import PromptedEncoder as PromptedEncoder
from .checkpoint import BACKBONES as BACKBONES
from .checkpoint import Backbone as Backbone
from .checkpoint import Checkpoint as Checkpoint
from .encoder import Encoder as Encoder
from .encoder import QueryEncoder as QueryEncoder
from .loading import load as load
from .multivector import attach as attach
from .multivector import detach as detach

DEFAULT_MODEL: str
