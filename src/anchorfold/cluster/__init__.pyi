from .cluster import Cluster as Cluster
from .sharded import ShardedIndex as ShardedIndex
