from .cluster import Cluster as Cluster
from .sharded_index import ShardedIndex as ShardedIndex
